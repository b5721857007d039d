// Which instructions the kernels use: the best that this machine has, chosen when the library is loaded.
//
// Note: one source, many instruction sets. loops.hpp holds every loop once, as plain C++ that the compiler
// vectorises. Each loops_<set>.cpp includes it with the instructions of its set switched on, in a namespace
// of its own, and exports one `Loops`. The public functions of reduce.hpp go through the `Loops` of the set
// in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/dtype.hpp"

namespace legato {

// The loops of one instruction set; what they promise is in reduce.hpp.
struct Loops {
    void (*load)(DType, void* accumulator, const void* input, size_t num_items);
    void (*reduce)(DType, Reduction, void* accumulator, const void* input, size_t num_items);
    void (*store)(DType, void* output, const void* accumulator, double factor, size_t num_items);
    void (*add)(DType, void* total, const void* input, size_t num_items);
    void (*scale)(DType, void* data, double factor, size_t num_items);
};

struct InstructionSet {
    const char* name;
    const Loops* loops;
    uint32_t (*crc32c)(const void* data, size_t num_bytes, uint32_t seed);
};

const InstructionSet& current_instruction_set();

// "avx512", "avx2", "neon" or "scalar".
const char* instruction_set();

// For tests, which compare every set with the scalar one; throws std::invalid_argument for one not available.
void set_instruction_set(std::string_view name);
std::vector<const char*> available_instruction_sets();

}  // namespace legato
