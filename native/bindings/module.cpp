// The Python module legato._native: each room of native/ binds itself in a file of its own.
#include <nanobind/nanobind.h>

NB_MODULE(_native, module) { module.doc() = "The parts of legato that move bytes: they never take the GIL."; }
