#include "kernels/reduce.hpp"

#include <algorithm>

#include "kernels/instruction_set.hpp"

namespace legato {

namespace {
const Loops& loops() { return *current_instruction_set().loops; }
}  // namespace

void load(DType dtype, void* accumulator, const void* input, size_t num_items) {
    loops().load(dtype, accumulator, input, num_items);
}

void reduce(DType dtype, Reduction reduction, void* accumulator, const void* input, size_t num_items) {
    loops().reduce(dtype, reduction, accumulator, input, num_items);
}

void store(DType dtype, void* output, const void* accumulator, double factor, size_t num_items) {
    loops().store(dtype, output, accumulator, factor, num_items);
}

void add(DType dtype, void* total, const void* input, size_t num_items) {
    loops().add(dtype, total, input, num_items);
}

void sum(DType dtype, void* output, std::span<const void* const> inputs, size_t num_items) {
    // Small enough to stay in the first-level cache while every input passes over it.
    alignas(64) std::byte accumulator[8192];
    const size_t block_items = sizeof accumulator / accumulator_item_bytes(dtype);
    for (size_t first = 0; first < num_items; first += block_items) {
        const size_t count = std::min(block_items, num_items - first);
        const size_t offset = first * item_bytes(dtype);
        const auto block_of = [&](const void* data) { return static_cast<const std::byte*>(data) + offset; };
        load(dtype, accumulator, block_of(inputs[0]), count);
        for (const void* input : inputs.subspan(1))
            reduce(dtype, Reduction::sum, accumulator, block_of(input), count);
        store(dtype, static_cast<std::byte*>(output) + offset, accumulator, 1.0, count);
    }
}

void scale(DType dtype, void* data, double factor, size_t num_items) {
    loops().scale(dtype, data, factor, num_items);
}

}  // namespace legato
