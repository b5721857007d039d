#include "kernels/reduce.hpp"

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

void scale(DType dtype, void* data, double factor, size_t num_items) {
    loops().scale(dtype, data, factor, num_items);
}

}  // namespace legato
