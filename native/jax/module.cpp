// The Python module legato.jax._ffi: built only where jax is there to build for.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collector_api.h"
#include "jax/averages.hpp"
#include "jax/handlers.hpp"

namespace nb = nanobind;

NB_MODULE(_ffi, module) {
    module.doc() = "What compiled JAX programs call: they reach the engine without the interpreter.";
    module.def("handlers", [] {
        nb::dict capsules;
        for (const auto& [name, function] : legato::jax::handlers()) {
            capsules[name.c_str()] = nb::capsule(function, "xla._CUSTOM_CALL_TARGET");
        }
        return capsules;
    });
    module.def(
        "enroll",
        [](uintptr_t api, uintptr_t collector, std::vector<std::string> names) {
            const auto* functions = reinterpret_cast<const LegatoCollectorApi*>(api);
            if (functions->version != LEGATO_COLLECTOR_API_VERSION) {
                throw std::runtime_error("legato.jax._ffi and legato._native are of different builds");
            }
            return legato::jax::enroll(std::make_shared<legato::jax::Averages>(
                functions, reinterpret_cast<void*>(collector), std::move(names)));
        },
        nb::arg("api"), nb::arg("collector"), nb::arg("names"));
    module.def("dismiss", &legato::jax::dismiss, nb::arg("exchange"));
}
