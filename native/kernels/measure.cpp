#include "kernels/measure.hpp"

#include "kernels/instruction_set.hpp"

namespace legato {

Measure measure(DType dtype, const void* items, size_t num_items) {
    return current_instruction_set().loops->measure(dtype, items, num_items);
}

}  // namespace legato
