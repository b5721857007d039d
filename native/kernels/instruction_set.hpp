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
#include "kernels/measure.hpp"

namespace legato {

// The loops of one instruction set; what they promise is in reduce.hpp and measure.hpp.
struct Loops {
    void (*load)(DType, void* accumulator, const void* input, size_t num_items);
    void (*reduce)(DType, Reduction, void* accumulator, const void* input, size_t num_items);
    void (*store)(DType, void* output, const void* accumulator, double factor, size_t num_items);
    void (*add)(DType, void* total, const void* input, size_t num_items);
    void (*scale)(DType, void* data, double factor, size_t num_items);
    Measure (*measure)(DType, const void* items, size_t num_items);
};

// The same for the codecs, over float32 items at any address; what they compute is said in codec_loops.hpp.
struct CodecLoops {
    float (*largest)(const void* items, size_t num_items);
    double (*sum_of_magnitudes)(const void* items, size_t num_items);
    double (*sum_of_squares)(const void* items, size_t num_items);
    void (*pack_signs)(void* words, const void* items, size_t num_items);
    void (*unpack_signs)(void* items, const void* words, float scale, size_t num_items);
    void (*quantize)(void* codes, const void* items, float factor, size_t num_items);
    void (*dequantize)(void* items, const void* codes, float unit, size_t num_items);
    using Dither = void (*)(int8_t* codes, const void* items, float factor, int32_t num_levels, uint64_t key,
                            uint32_t first, size_t num_items);
    Dither dither_linear;
    Dither dither_natural;
};

struct InstructionSet {
    const char* name;
    const Loops* loops;
    const CodecLoops* codec_loops;
    uint32_t (*crc32c)(const void* data, size_t num_bytes, uint32_t seed);
};

const InstructionSet& current_instruction_set();

// "avx512", "avx2", "neon" or "scalar".
const char* instruction_set();

// For tests, which compare every set with the scalar one; throws std::invalid_argument for one not available.
void set_instruction_set(std::string_view name);
std::vector<const char*> available_instruction_sets();

}  // namespace legato
