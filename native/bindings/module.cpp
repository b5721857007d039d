// The Python module legato._native: each room of native/ binds itself in a file of its own.
#include <nanobind/nanobind.h>

#include <exception>
#include <system_error>

namespace legato {
void bind_codecs(nanobind::module_& module);
void bind_collector(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_gradient_hook(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
}  // namespace legato

namespace {

// What the system refused is an OSError with its number, so that Python can tell which limit was met.
void translate(const std::exception_ptr& thrown, void* /*payload*/) {
    try {
        std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
        const nanobind::tuple arguments = nanobind::make_tuple(error.code().value(), error.what());
        PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "The parts of legato that move bytes: they never take the GIL.";
    // A handle that is alive when the interpreter ends is nobody's leak, and users should not read of it.
    nanobind::set_leak_warnings(false);
    nanobind::register_exception_translator(translate);
    legato::bind_codecs(module);
    legato::bind_engine(module);
    legato::bind_collector(module);
    legato::bind_gradient_hook(module);
    legato::bind_kernels(module);
}
