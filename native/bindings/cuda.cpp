#include "bindings/cuda.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace legato {

namespace {

// As cuda.h declares them: a result is an int, 0 if all is well; a stream is a pointer, and the address of a
// word 64 bits.
using WaitValue = int (*)(void* stream, unsigned long long address, uint32_t value, unsigned int flags);
using LaunchHostFunction = int (*)(void* stream, void (*function)(void*), void* argument);

constexpr unsigned int kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ

template <typename Function>
Function find(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    auto* const found = library == nullptr ? nullptr : dlsym(library, name);
    if (found == nullptr)
        throw std::runtime_error(std::string("CUDA's driver, libcuda.so.1, has no ") + name +
                                 ", or is not there");
    return reinterpret_cast<Function>(found);
}

void check(int result, const char* name) {
    if (result != 0)
        throw std::runtime_error(std::string(name) + " of CUDA's driver failed with error " +
                                 std::to_string(result));
}

}  // namespace

void cuda_wait_for_word(uintptr_t stream, uintptr_t word, uint32_t mark) {
    static const auto wait = find<WaitValue>("cuStreamWaitValue32_v2");
    check(wait(reinterpret_cast<void*>(stream), word, mark, kAtLeast), "cuStreamWaitValue32");
}

void cuda_call(uintptr_t stream, void (*function)(void*), void* argument) {
    static const auto launch = find<LaunchHostFunction>("cuLaunchHostFunc");
    check(launch(reinterpret_cast<void*>(stream), function, argument), "cuLaunchHostFunc");
}

}  // namespace legato
