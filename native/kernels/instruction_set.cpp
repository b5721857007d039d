#include "kernels/instruction_set.hpp"

#include <atomic>
#include <stdexcept>
#include <string>

#include "kernels/crc32c_variants.hpp"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace legato {

namespace scalar {
extern const Loops loops;
extern const CodecLoops codec_loops;
}  // namespace scalar
namespace neon {
extern const Loops loops;
extern const CodecLoops codec_loops;
}  // namespace neon
namespace avx2 {
extern const Loops loops;
extern const CodecLoops codec_loops;
}  // namespace avx2
namespace avx512 {
extern const Loops loops;
extern const CodecLoops codec_loops;
}  // namespace avx512

namespace {

// From the slowest to the fastest.
std::vector<InstructionSet> detect() {
    std::vector<InstructionSet> sets{{"scalar", &scalar::loops, &scalar::codec_loops, crc32c_tables}};
#if defined(__aarch64__)
    // NEON is part of every 64-bit ARM; the instructions for checksums are optional.
    const auto has = [](uint64_t features) { return (getauxval(AT_HWCAP) & features) == features; };
    const auto crc32c = has(HWCAP_CRC32 | HWCAP_PMULL) ? crc32c_folding
                        : has(HWCAP_CRC32)             ? crc32c_instructions
                                                       : crc32c_tables;
    sets.push_back({"neon", &neon::loops, &neon::codec_loops, crc32c});
#elif defined(__x86_64__)
    // These ask the operating system too, whether it saves the wide registers.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        sets.push_back({"avx2", &avx2::loops, &avx2::codec_loops, crc32c_instructions});
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            sets.push_back({"avx512", &avx512::loops, &avx512::codec_loops, crc32c_instructions});
    }
#endif
    return sets;
}

const std::vector<InstructionSet>& available() {
    // Never destroyed: at the end of the process I/O threads may still be summing.
    static const auto& sets = *new std::vector<InstructionSet>(detect());
    return sets;
}

std::atomic<const InstructionSet*> current{&available().back()};

}  // namespace

const InstructionSet& current_instruction_set() { return *current.load(std::memory_order_relaxed); }

const char* instruction_set() { return current_instruction_set().name; }

void set_instruction_set(std::string_view name) {
    std::string names;
    for (const InstructionSet& set : available()) {
        if (name == set.name) return current.store(&set, std::memory_order_relaxed);
        names += names.empty() ? "" : ", ";
        names += set.name;
    }
    throw std::invalid_argument("instruction set '" + std::string(name) +
                                "' is not one of this machine's: " + names);
}

std::vector<const char*> available_instruction_sets() {
    std::vector<const char*> names;
    for (const InstructionSet& set : available()) names.push_back(set.name);
    return names;
}

}  // namespace legato
