// The Python module legato._native: each room of native/ binds itself in a file of its own.
#include <nanobind/nanobind.h>

namespace legato {
void bind_engine(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
}  // namespace legato

NB_MODULE(_native, module) {
    module.doc() = "The parts of legato that move bytes: they never take the GIL.";
    legato::bind_engine(module);
    legato::bind_kernels(module);
}
