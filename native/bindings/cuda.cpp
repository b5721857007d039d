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
using GetFlags = int (*)(unsigned int* flags);
using SetFlags = int (*)(unsigned int flags);

constexpr unsigned int kAtLeast = 0;    // CU_STREAM_WAIT_VALUE_GEQ
constexpr unsigned int kHowToWait = 7;  // CU_CTX_SCHED_MASK; 0 leaves it to the driver
constexpr unsigned int kSleep = 4;      // CU_CTX_SCHED_BLOCKING_SYNC

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

void cuda_sleep_while_waiting() {
    static const auto get = find<GetFlags>("cuCtxGetFlags");
    static const auto set = find<SetFlags>("cuCtxSetFlags");
    unsigned int flags = 0;
    check(get(&flags), "cuCtxGetFlags");
    if ((flags & kHowToWait) == 0) check(set(flags | kSleep), "cuCtxSetFlags");
}

}  // namespace legato
