// Element-wise kernels over raw memory of any alignment.
//
// A sum takes three steps: `load` the first contribution, `reduce` the others, `store` the result. Only
// `store` rounds (to nearest even), so the sum of many f16 or bf16 tensors is rounded once. Integer
// arithmetic wraps. NaN wins over every number, in min and max too.
#pragma once

#include <cstddef>

#include "kernels/dtype.hpp"

namespace legato {

// accumulator = input, widened to the accumulator's type.
void load(DType dtype, void* accumulator, const void* input, size_t num_items);

// accumulator op= input; average adds, and leaves the division to the factor of `store`.
void reduce(DType dtype, Reduction reduction, void* accumulator, const void* input, size_t num_items);

// output = accumulator * factor, narrowed; output may be accumulator where both have the same item size.
// A factor of 1.0 / n (n up to 2^24) divides by n, so that an average is what `/` gives in the accumulator's
// type: integers are truncated toward zero, exactly, beyond 2^53 too. Any other factor multiplies; integers
// then pass through double and saturate.
void store(DType dtype, void* output, const void* accumulator, double factor, size_t num_items);

// total += input, both of `dtype`, rounded once.
void add(DType dtype, void* total, const void* input, size_t num_items);

// data *= factor, as `store` does it.
void scale(DType dtype, void* data, double factor, size_t num_items);

}  // namespace legato
