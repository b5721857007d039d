// What autograd calls before and after it accumulates a parameter's gradient. It does so for every tensor of
// every step, where frames of Python cost more than the rest: what is plain goes to the collector from here,
// and everything else to the schedule's functions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/collector.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {

namespace {

nb::object interned(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }

nb::object get(nb::handle object, const nb::object& name) {
    PyObject* const value = PyObject_GetAttr(object.ptr(), name.ptr());
    if (value == nullptr) throw nb::python_error();
    return nb::steal(value);
}

void set(nb::handle object, const nb::object& name, nb::handle value) {
    if (PyObject_SetAttr(object.ptr(), name.ptr(), value.ptr()) != 0) throw nb::python_error();
}

// What the hooks of one schedule have in common.
struct PlainPass {
    nb::object current_backward;  // gives the number of the backward pass that calls a hook
    nb::object tensor;            // the class of a plain gradient
    nb::object pending;           // its class while it is under way
    nb::object in_flight;         // the state of its parameter then
    int64_t number = -1;          // the backward pass whose plain gradients go from here; -1: none
    bool is_timed = false;        // whether anybody wants to know when gradients came
    std::vector<std::pair<size_t, int64_t>> came;  // by index, in nanoseconds of the monotonic clock

    const nb::object grad = interned("grad"), is_neg = interned("is_neg"), kind = interned("__class__"),
                     settle = interned("_settle"), state = interned("state"), due = interned("due"),
                     gradient = interned("gradient"), had_none = interned("had_none"),
                     backward = interned("backward");

    void note(size_t index) {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        if (is_timed)
            came.emplace_back(index, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    }
};

// Where plain gradients of a parameter go.
struct Target {
    nb::object collector;
    uint32_t place = 0;
    nb::object passages;  // a list, which has the gradient from then on
    nb::object refusal;   // makes an error of a place and what the collector says
    nb::object tell;      // called with the index before, unless it is None
};

class GradientHook {
  public:
    GradientHook(nb::object pass, nb::object each, size_t index, nb::object look, nb::object before,
                 nb::object after)
        : pass_(std::move(pass)),
          each_(std::move(each)),
          index_(index),
          look_(std::move(look)),
          before_(std::move(before)),
          after_(std::move(after)) {}

    void aim(nb::object collector, uint32_t place, nb::object passages, nb::object refusal, nb::object tell) {
        target_ = {std::move(collector), place, std::move(passages), std::move(refusal), std::move(tell)};
    }
    void rest() { target_ = {}; }

    nb::object before(nb::handle gradient) const {
        const auto& pass = nb::cast<const PlainPass&>(pass_);
        const bool is_free = get(each_, pass.due).is_none() && !get(each_, pass.state).is(pass.in_flight);
        return is_free ? nb::none() : before_(each_, gradient);
    }
    nb::object after(nb::handle parameter) const {
        return hand_over(parameter) ? nb::none() : after_(each_, parameter);
    }

    nb::object each() const { return each_; }
    nb::object otherwise() const { return after_; }

    // Hooks and schedule refer to each other: the garbage collector sees it, and can end it.
    int visit(visitproc visit, void* arg) const {
        for (const nb::object* object : {&each_, &look_, &before_, &after_, &target_.collector,
                                         &target_.passages, &target_.refusal, &target_.tell})
            Py_VISIT(object->ptr());
        return 0;
    }
    void clear() {
        rest();
        for (nb::object* object : {&each_, &look_, &before_, &after_}) object->reset();
    }

  private:
    // False, and nothing has happened, of what is not plain.
    bool hand_over(nb::handle parameter) const {
        auto& pass = nb::cast<PlainPass&>(pass_);
        if (!target_.collector.is_valid() || pass.number < 0) return false;
        const nb::object backward = pass.current_backward();
        if (nb::cast<int64_t>(backward) != pass.number || get(each_, pass.state).is(pass.in_flight))
            return false;
        const nb::object gradient = get(parameter, pass.grad);
        if (!gradient.type().is(pass.tensor) || nb::cast<bool>(get(gradient, pass.is_neg)())) return false;
        auto& collector = nb::cast<PyCollector&>(target_.collector);
        std::byte* const address = collector.address_of(target_.place, gradient);
        if (address == nullptr) return false;
        pass.note(index_);
        if (!target_.tell.is_none()) target_.tell(index_);
        add(collector, address, gradient);
        nb::borrow<nb::list>(target_.passages)[index_] = gradient;
        set(each_, pass.backward, backward);
        set(each_, pass.gradient, gradient);
        set(each_, pass.had_none, nb::handle(Py_False));
        set(each_, pass.state, pass.in_flight);
        set(gradient, pass.kind, pass.pending);
        set(gradient, pass.settle, look_);
        return true;
    }
    void add(PyCollector& collector, std::byte* address, const nb::object& gradient) const {
        nb::object error;
        try {
            return collector.add_at(target_.place, address, gradient);
        } catch (const std::invalid_argument& refused) {
            error = nb::handle(PyExc_ValueError)(refused.what());
        } catch (const std::runtime_error& refused) {
            error = nb::handle(PyExc_RuntimeError)(refused.what());
        }
        error = target_.refusal(target_.place, error);
        PyErr_SetObject(error.type().ptr(), error.ptr());
        throw nb::python_error();
    }

    const nb::object pass_;
    nb::object each_;
    const size_t index_;
    nb::object look_, before_, after_;
    Target target_;
};

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<GradientHook>(self)->visit(visit, arg) : 0;
}

int clear(PyObject* self) {
    nb::inst_ptr<GradientHook>(self)->clear();
    return 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                       {0, nullptr}};

}  // namespace

void bind_gradient_hook(nb::module_& module) {
    nb::class_<PlainPass>(module, "PlainPass")
        .def(
            "__init__",
            [](PlainPass* self, nb::object current_backward, nb::object tensor, nb::object pending,
               nb::object in_flight) {
                new (self) PlainPass{std::move(current_backward), std::move(tensor), std::move(pending),
                                     std::move(in_flight)};
            },
            "current_backward"_a, "tensor"_a, "pending"_a, "in_flight"_a)
        .def_rw("number", &PlainPass::number)
        .def_rw("is_timed", &PlainPass::is_timed)
        .def("note", &PlainPass::note, "index"_a)
        .def("take", [](PlainPass& self) { return std::exchange(self.came, {}); });
    nb::class_<GradientHook>(module, "GradientHook", nb::type_slots(slots))
        .def(nb::init<nb::object, nb::object, size_t, nb::object, nb::object, nb::object>(), "plain"_a,
             "each"_a, "index"_a, "look"_a, "before"_a, "after"_a)
        .def("aim", &GradientHook::aim, "collector"_a, "place"_a, "passages"_a, "refusal"_a, "tell"_a.none())
        .def("rest", &GradientHook::rest)
        .def_prop_ro("each", &GradientHook::each)
        .def_prop_ro("otherwise", &GradientHook::otherwise)
        .def("before", &GradientHook::before, "gradient"_a)
        .def("after", &GradientHook::after, "parameter"_a);
}

}  // namespace legato
