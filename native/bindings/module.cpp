// The Python module legato._native: each room of native/ binds itself in a file of its own.
#include <nanobind/nanobind.h>

namespace legato {
void bind_codecs(nanobind::module_& module);
void bind_collector(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
}  // namespace legato

NB_MODULE(_native, module) {
    module.doc() = "The parts of legato that move bytes: they never take the GIL.";
    // A handle that is alive when the interpreter ends is nobody's leak, and users should not read of it.
    nanobind::set_leak_warnings(false);
    legato::bind_codecs(module);
    legato::bind_engine(module);
    legato::bind_collector(module);
    legato::bind_kernels(module);
}
