#include "bindings/cuda.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace legato {

namespace {

// As cuda.h declares them: a result is an int, 0 if all is well; a stream is a pointer, and the address of a
// word 64 bits.
using OfWord = int (*)(void* stream, unsigned long long address, uint32_t value, unsigned int flags);
using GetFlags = int (*)(unsigned int* flags);
using SetFlags = int (*)(unsigned int flags);

constexpr unsigned int kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ
constexpr unsigned int kInOrder =
    0;  // CU_STREAM_WRITE_VALUE_DEFAULT: what the stream wrote before is there before
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
    static const auto wait = find<OfWord>("cuStreamWaitValue32_v2");
    check(wait(reinterpret_cast<void*>(stream), word, mark, kAtLeast), "cuStreamWaitValue32");
}

void cuda_write_word(uintptr_t stream, uintptr_t word, uint32_t mark) {
    static const auto write = find<OfWord>("cuStreamWriteValue32_v2");
    check(write(reinterpret_cast<void*>(stream), word, mark, kInOrder), "cuStreamWriteValue32");
}

void cuda_sleep_while_waiting() {
    static const auto get = find<GetFlags>("cuCtxGetFlags");
    static const auto set = find<SetFlags>("cuCtxSetFlags");
    unsigned int flags = 0;
    check(get(&flags), "cuCtxGetFlags");
    if ((flags & kHowToWait) == 0) check(set(flags | kSleep), "cuCtxSetFlags");
}

}  // namespace legato
