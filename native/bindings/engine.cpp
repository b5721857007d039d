// The engine in Python. Calls that wait do so without the GIL; the others are too short to give it away: to
// get it back can take milliseconds.
#include "engine/engine.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "bindings/duration.hpp"
#include "engine/server/running_total.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {

namespace {

// A method, for the process that made the engine.
template <typename Result, typename... Arguments>
auto at_home(Result (Engine::*method)(Arguments...)) {
    return [method](Engine& engine, Arguments... arguments) {
        engine.check_process();
        return (engine.*method)(std::forward<Arguments>(arguments)...);
    };
}

// All in the order of their enumerators.
constexpr std::array kFailures{"peer_lost", "protocol", "mismatch", "closed", "internal", "corrupted"};
constexpr std::array kTraceEvents{"ready", "start", "sent", "finish", "done"};
constexpr std::array kWires{"plain", "authenticated", "encrypted"};

Wire wire_from_name(const std::string& name) {
    const auto found = std::find(kWires.begin(), kWires.end(), name);
    if (found == kWires.end()) throw std::invalid_argument("no wire: '" + name + "'");
    return static_cast<Wire>(found - kWires.begin());
}

const char* name_of(FailureKind kind) { return kFailures.at(static_cast<size_t>(kind)); }
const char* name_of(TraceEvent what) { return kTraceEvents.at(static_cast<size_t>(what)); }

// Words that may be a peer's, who can have sent any bytes, or cut off in the middle of a character.
nb::object text(const std::string& words) {
    return nb::steal(PyUnicode_DecodeUTF8(words.data(), static_cast<Py_ssize_t>(words.size()), "replace"));
}

bool wait(const Task& task, double timeout_s) {
    if (task.is_done()) return true;
    const nb::gil_scoped_release no_gil;
    return task.wait(duration(timeout_s));
}

bool wait_measured(const Task& task, double timeout_s) {
    const nb::gil_scoped_release no_gil;
    return task.wait_measured(duration(timeout_s));
}

bool wait_first(const Task& task, uint64_t num_bytes, double timeout_s) {
    const nb::gil_scoped_release no_gil;
    return task.wait_first(num_bytes, duration(timeout_s));
}

std::optional<std::pair<double, double>> measure_of(const Task& task) {
    const auto measure = task.measure();
    if (!measure) return {};
    return std::pair(measure->sum_of_squares, measure->largest);
}

using KeyPair = std::pair<nb::bytes, nb::bytes>;

void attach(Engine& engine, int32_t peer, const std::vector<int>& sockets,
            const std::vector<KeyPair>& pairs) {
    engine.check_process();
    std::vector<ConnectionKeys> keys;
    for (const auto& [sending, receiving] : pairs)
        keys.push_back({{sending.c_str(), sending.size()}, {receiving.c_str(), receiving.size()}});
    engine.attach(peer, sockets, keys);
}

using PartTuple = std::tuple<uint64_t, uint64_t, int32_t, int32_t, int32_t>;

void lay_out(Engine& engine, uint32_t tensor, int64_t from_step, const std::vector<PartTuple>& tuples) {
    engine.check_process();
    std::vector<Part> parts;
    for (const auto& [offset, length, server, writer, reader] : tuples)
        parts.push_back({offset, length, server, writer, reader});
    engine.lay_out(tensor, from_step, std::move(parts));
}

using Segment = std::optional<std::pair<uint64_t, uint64_t>>;  // offset and length

template <typename Byte>
Span<Byte> span_of(uintptr_t address, uint64_t num_bytes, const Segment& segment) {
    auto* data = reinterpret_cast<Byte*>(address);
    return segment ? Span<Byte>{data, segment->second, segment->first} : Span<Byte>{data, num_bytes};
}

std::shared_ptr<Task> submit(Engine& engine, uint32_t tensor, int64_t step, int32_t rank, uintptr_t source,
                             uintptr_t destination, uint64_t num_bytes, const std::string& reduction,
                             bool absent, std::shared_ptr<Task> after, uintptr_t scale,
                             const Segment& source_segment, const Segment& destination_segment,
                             bool measured) {
    engine.check_process();
    const Submission submission{tensor,
                                step,
                                rank,
                                rank,
                                span_of<const std::byte>(source, num_bytes, source_segment),
                                span_of<std::byte>(destination, num_bytes, destination_segment),
                                reduction_from_name(reduction),
                                absent,
                                std::move(after),
                                reinterpret_cast<const float*>(scale),
                                nullptr,
                                measured};
    return engine.submit({submission}).front();
}

nb::list take_events(Engine& engine) {
    engine.check_process();
    nb::list list;
    for (const Trace::Record& event : engine.take_trace())
        list.append(nb::make_tuple(event.ns, name_of(event.what), event.tensor, event.step, event.offset,
                                   event.length));
    return list;
}

std::vector<std::tuple<int32_t, uint64_t, uint64_t>> flows(const Engine& engine) {
    engine.check_process();
    std::vector<std::tuple<int32_t, uint64_t, uint64_t>> flows;
    for (const Uplink::Flow& flow : engine.flows())
        flows.emplace_back(flow.peer, flow.num_acknowledged, flow.busy_us);
    return flows;
}

std::vector<std::tuple<int32_t, uint64_t, uint64_t, uint64_t, uint64_t>> links(const Engine& engine) {
    engine.check_process();
    std::vector<std::tuple<int32_t, uint64_t, uint64_t, uint64_t, uint64_t>> links;
    int32_t peer = 0;
    for (const Traffic& each : engine.traffic()) {
        const uint64_t sent = each.bytes_sent, received = each.bytes_received;
        const uint64_t shared_sent = each.bytes_shared_sent, shared_received = each.bytes_shared_received;
        if (sent + received + shared_sent + shared_received > 0)
            links.emplace_back(peer, sent, received, shared_sent, shared_received);
        ++peer;
    }
    return links;
}

void bind_engine_class(nb::module_& module) {
    nb::class_<Engine>(module, "Engine")
        .def(nb::new_([](int32_t member, int32_t num_workers, int32_t num_members, uint32_t epoch,
                         size_t num_io_threads, size_t chunk_bytes, double heartbeat_s, bool trace,
                         std::vector<int32_t> hosts, const std::string& wire, int32_t num_learners) {
                 const Engine::Options options{member,           num_workers,          num_members, epoch,
                                               num_io_threads,   chunk_bytes,          heartbeat_s, trace,
                                               std::move(hosts), wire_from_name(wire), num_learners};
                 return std::shared_ptr<Engine>(new Engine(options), LeaveToMaker());
             }),
             nb::kw_only(), "member"_a, "num_workers"_a, "num_members"_a, "epoch"_a = 0,
             "num_io_threads"_a = 1, "chunk_bytes"_a = 65536, "heartbeat_s"_a = 5.0, "trace"_a = false,
             "hosts"_a = std::vector<int32_t>(), "wire"_a = "plain", "num_learners"_a = 0)
        .def("attach", &attach, "peer"_a, "sockets"_a, "keys"_a = std::vector<KeyPair>())
        .def("attach_shared", at_home(&Engine::attach_shared), "peer"_a, "socket"_a, "memory"_a)
        .def(
            "declare",
            [](Engine& self, uint32_t tensor, std::string name, uint64_t num_bytes, const std::string& dtype,
               const Coding* coding, std::optional<int64_t> staleness, int32_t backups) {
                self.check_process();
                self.declare({tensor, std::move(name), num_bytes, dtype_from_name(dtype),
                              coding == nullptr ? Coding{} : *coding, staleness, backups});
            },
            "tensor"_a, "name"_a, "num_bytes"_a, "dtype"_a, "coding"_a.none() = nb::none(),
            "staleness"_a.none() = nb::none(), "backups"_a = 0)
        .def("lay_out", &lay_out, "tensor"_a, "from_step"_a, "parts"_a)
        .def("set_credit", at_home(&Engine::set_credit), "from_step"_a, "credit_bytes"_a)
        .def("set_stage_barrier", at_home(&Engine::set_stage_barrier), "from_step"_a, "tensors"_a)
        .def("submit", &submit, "tensor"_a, "step"_a, "rank"_a, "source"_a, "destination"_a, "num_bytes"_a,
             "reduction"_a = "sum", "absent"_a = false, "after"_a.none() = nb::none(), "scale"_a = 0,
             "source_segment"_a.none() = nb::none(), "destination_segment"_a.none() = nb::none(),
             "measured"_a = false)
        .def_prop_ro("failure", &Engine::failure)
        .def("statistics",
             [](const Engine& self) {
                 self.check_process();
                 return self.statistics();
             })
        .def("flows", &flows)
        .def("links", &links)
        .def("set_trace", at_home(&Engine::set_trace), "first_step"_a, "last_step"_a, "max_events"_a)
        .def("take_events", &take_events)
        .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_engine(nb::module_& module) {
    nb::class_<Failure>(module, "Failure")
        .def_prop_ro("kind", [](const Failure& failure) { return name_of(failure.kind); })
        .def_ro("rank", &Failure::rank)
        .def_ro("tensor", &Failure::tensor)
        .def_ro("step", &Failure::step)
        .def_prop_ro("message", [](const Failure& failure) { return text(failure.message); })
        .def("__repr__", [](const Failure& failure) {
            return text("Failure(" + std::string(name_of(failure.kind)) + ": " + failure.message + ")");
        });
    nb::class_<Task>(module, "Handle")
        .def("poll", &Task::is_done)
        .def("wait", &wait, "timeout_s"_a)
        .def("wait_measured", &wait_measured, "timeout_s"_a)
        .def_prop_ro("measure", &measure_of)
        .def("wait_first", &wait_first, "num_bytes"_a, "timeout_s"_a)
        .def_prop_ro("first_bytes", &Task::first_bytes)
        .def_prop_ro("failure", &Task::failure)
        .def_prop_ro("missing", &Task::missing)
        .def_prop_ro("empty", &Task::is_empty)
        .def_prop_ro("without", &Task::without);
    nb::class_<Coding>(module, "Coding")
        .def(
            "__init__",
            [](Coding* self, CodecPtr push, CodecPtr pull, bool feeds_back, bool server_feeds_back,
               float momentum, bool has_agreed_scale) {
                new (self) Coding{std::move(push),   std::move(pull), feeds_back,
                                  server_feeds_back, momentum,        has_agreed_scale};
            },
            nb::kw_only(), "push"_a, "pull"_a, "feeds_back"_a = false, "server_feeds_back"_a = false,
            "momentum"_a = 0.0F, "has_agreed_scale"_a = false);
    bind_engine_class(module);
    module.def("find_libcrypto", [] { Libcrypto::get(); });
    module.attr("LAST_STEP") = kLastStep;
}

}  // namespace legato
