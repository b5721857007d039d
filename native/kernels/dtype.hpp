// The element types and reductions that kernels and wire know; the numbers are part of the wire protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace legato {

enum class DType : uint8_t { f32 = 0, f64, f16, bf16, i8, u8, i32, i64, i16 };
enum class Reduction : uint8_t { sum = 0, average, min, max, product };

// From the names that numpy and torch use ("float32", "bfloat16", "int8", ...) and those of the enumerators
// ("sum", "average", ...); throws std::invalid_argument that names what is accepted.
DType dtype_from_name(std::string_view name);
Reduction reduction_from_name(std::string_view name);
std::string_view name_of(DType dtype);

size_t item_bytes(DType dtype);
// f16 and bf16 accumulate in f32; every other dtype in itself.
size_t accumulator_item_bytes(DType dtype);

}  // namespace legato
