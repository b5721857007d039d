// The collector and the gate in Python, and the collector's functions for native code of frameworks.
#include "bindings/collector.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings/cuda.hpp"
#include "bindings/duration.hpp"
#include "collector_api.h"
#include "engine/forks.hpp"
#include "engine/worker/word_watch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {

namespace {

using MemberTuple = std::tuple<uint32_t, std::string, uint64_t, std::optional<uint32_t>>;
using BucketTuple = std::tuple<std::vector<uint32_t>, int32_t, int32_t>;

void make(PyCollector* self, std::shared_ptr<Engine> engine, std::shared_ptr<StepGate> gate,
          const std::vector<MemberTuple>& tuples) {
    std::vector<Collector::Member> members;
    for (const auto& [tensor, name, num_bytes, scale] : tuples)
        members.push_back({tensor, name, num_bytes, scale});
    new (self) PyCollector{
        std::make_shared<Collector>(std::move(engine), std::move(gate), std::move(members)),
        std::vector<nb::object>(tuples.size()), std::vector<std::optional<Likeness>>(tuples.size())};
}

void follow(PyCollector& self, int64_t from_step, const std::vector<BucketTuple>& tuples) {
    std::vector<Collector::Bucket> buckets;
    for (const auto& [members, push_rank, pull_rank] : tuples)
        buckets.push_back({members, push_rank, pull_rank});
    self.collector->follow(from_step, std::move(buckets));
}

int64_t add(PyCollector& self, uint32_t index, uintptr_t address, uint64_t num_bytes, bool is_absent,
            nb::object memory, std::optional<uintptr_t> destination, bool is_unread) {
    const int64_t step = self.collector->add(index, reinterpret_cast<const std::byte*>(address),
                                             reinterpret_cast<std::byte*>(destination.value_or(address)),
                                             num_bytes, is_absent, is_unread);
    self.memory[index] = std::move(memory);
    return step;
}

bool add_like(PyCollector& self, uint32_t index, const nb::object& tensor) {
    std::byte* const address = self.address_of(index, tensor);
    if (address == nullptr) return false;
    self.add_at(index, address, tensor);
    return true;
}

void forget(PyCollector& self, uint32_t index) {
    if (self.collector->is_over(index)) self.memory[index].reset();
}

std::shared_ptr<Task> sent(const PyCollector& self, uint32_t index, double timeout_s) {
    const nb::gil_scoped_release no_gil;
    return self.collector->sent(index, duration(timeout_s));
}

nb::list overdue(const PyCollector& self, double seconds) {
    nb::list late;
    for (const auto& each : self.collector->overdue(duration(seconds)))
        late.append(nb::make_tuple(each.index, each.step, each.missing));
    return late;
}

void ready_when(const PyCollector& self, WordWatch& watch, uintptr_t word, uint32_t mark, uint32_t index,
                uint64_t num_bytes) {
    const std::weak_ptr<Collector> collector = self.collector;  // what has gone need not know
    watch.after(reinterpret_cast<const uint32_t*>(word), mark, [collector, index, num_bytes] {
        try {
            if (const auto there = collector.lock()) there->ready(index, num_bytes);
        } catch (const std::exception&) {
            // The engine has failed of it, and says so to whoever waits (Engine::whole).
        }
    });
}

void start(void* collector, uint32_t index, const void* source, void* destination, uint64_t num_bytes,
           LegatoDone done, void* context) {
    static_cast<Collector*>(collector)->start(index, static_cast<const std::byte*>(source),
                                              static_cast<std::byte*>(destination), num_bytes,
                                              [done, context](const char* error) { done(context, error); });
}

void send(void* collector, uint32_t index) {
    try {
        static_cast<Collector*>(collector)->send(index);
    } catch (const std::exception&) {
        // In a forked child, where `start` has said so.
    }
}

constexpr LegatoCollectorApi kApi{LEGATO_COLLECTOR_API_VERSION, &start, &send};

}  // namespace

void bind_collector(nb::module_& module) {
    nb::class_<StepGate>(module, "StepGate")
        .def(nb::new_([] { return std::make_shared<StepGate>(); }))
        .def_prop_ro("latest_step", &StepGate::latest_step)
        .def("admit", &StepGate::admit, "step"_a)
        .def("begin", &StepGate::begin, "step"_a, "action"_a)
        .def("close_from", &StepGate::close_from, "step"_a)
        .def("open", &StepGate::open);
    nb::class_<WordWatch>(module, "WordWatch")
        .def(nb::new_([] { return std::shared_ptr<WordWatch>(new WordWatch, LeaveToMaker()); }))
        .def("stop", &WordWatch::stop, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<PyCollector>(module, "Collector")
        .def("__init__", &make, "engine"_a, "gate"_a.none(), "members"_a)
        .def("follow", &follow, "from_step"_a, "buckets"_a)
        .def(
            "set_pieces",
            [](PyCollector& self, uint32_t index, uint64_t piece_bytes, uintptr_t words) {
                self.collector->set_pieces(index, piece_bytes, reinterpret_cast<uint32_t*>(words));
            },
            "index"_a, "piece_bytes"_a, "words"_a)
        .def(
            "set_coded",
            [](PyCollector& self, uint32_t index, uint64_t most_bytes) {
                self.collector->set_coded(index, most_bytes);
            },
            "index"_a, "most_bytes"_a)
        .def(
            "set_measured", [](PyCollector& self, bool measured) { self.collector->set_measured(measured); },
            "measured"_a)
        .def(
            "ready",
            [](PyCollector& self, uint32_t index, uint64_t num_bytes) {
                self.collector->ready(index, num_bytes);
            },
            "index"_a, "num_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("ready_when", &ready_when, "watch"_a, "word"_a, "mark"_a, "index"_a, "num_bytes"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def_static("mark_of", &Collector::mark_of, "step"_a)
        .def("add", &add, "index"_a, "address"_a, "num_bytes"_a, "absent"_a, "memory"_a,
             "destination"_a = nb::none(), "unread"_a = false)
        .def(
            "set_like",
            [](PyCollector& self, uint32_t index, nb::handle tensor) { self.like.at(index).emplace(tensor); },
            "index"_a, "tensor"_a)
        .def("add_like", &add_like, "index"_a, "tensor"_a)
        .def(
            "send", [](PyCollector& self, uint32_t index) { self.collector->send(index); }, "index"_a)
        .def(
            "poll", [](const PyCollector& self, uint32_t index) { return self.collector->is_over(index); },
            "index"_a)
        .def("sent", &sent, "index"_a, "timeout_s"_a)
        .def(
            "step", [](const PyCollector& self, uint32_t index) { return self.collector->step(index); },
            "index"_a)
        .def(
            "is_measured",
            [](const PyCollector& self, uint32_t index) { return self.collector->is_measured(index); },
            "index"_a)
        .def(
            "next_step",
            [](const PyCollector& self, uint32_t index) { return self.collector->next_step(index); },
            "index"_a)
        .def("forget", &forget, "index"_a)
        .def_prop_ro("latest_step", [](const PyCollector& self) { return self.collector->latest_step(); })
        .def_prop_ro("latest_steps", [](const PyCollector& self) { return self.collector->latest_steps(); })
        .def(
            "set_next_steps",
            [](PyCollector& self, const std::vector<int64_t>& steps) {
                self.collector->set_next_steps(steps);
            },
            "steps"_a)
        .def(
            "set_reason",
            [](PyCollector& self, std::string reason) { self.collector->set_reason(std::move(reason)); },
            "reason"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("overdue", &overdue, "seconds"_a)
        .def_prop_ro("address", [](const PyCollector& self) {
            return reinterpret_cast<uintptr_t>(self.collector.get());
        });
    module.def("cuda_wait_for_word", &cuda_wait_for_word, "stream"_a, "word"_a, "mark"_a,
               nb::call_guard<nb::gil_scoped_release>());
    module.def("cuda_write_word", &cuda_write_word, "stream"_a, "word"_a, "mark"_a,
               nb::call_guard<nb::gil_scoped_release>());
    module.def("cuda_sleep_while_waiting", &cuda_sleep_while_waiting);
    module.def("collector_api", [] { return reinterpret_cast<uintptr_t>(&kApi); });
}

}  // namespace legato
