#include "kernels/dtype.hpp"

#include <array>
#include <stdexcept>
#include <string>

namespace legato {

namespace {

struct DTypeInfo {
    std::string_view name;
    size_t item_bytes;
    size_t accumulator_item_bytes;
};

// Both in the order of their enumerators.
constexpr std::array<DTypeInfo, 9> dtypes{{{"float32", 4, 4},
                                           {"float64", 8, 8},
                                           {"float16", 2, 4},
                                           {"bfloat16", 2, 4},
                                           {"int8", 1, 1},
                                           {"uint8", 1, 1},
                                           {"int32", 4, 4},
                                           {"int64", 8, 8},
                                           {"int16", 2, 2}}};
constexpr std::array<std::string_view, 5> reductions{"sum", "average", "min", "max", "product"};

constexpr std::string_view name_in(const DTypeInfo& dtype) { return dtype.name; }
constexpr std::string_view name_in(std::string_view reduction) { return reduction; }

template <typename Enum, typename Table>
Enum from_name(const char* what, std::string_view name, const Table& table) {
    std::string names;
    for (size_t i = 0; i < table.size(); ++i) {
        if (name_in(table[i]) == name) return static_cast<Enum>(i);
        names += (i ? ", " : "") + std::string(name_in(table[i]));
    }
    throw std::invalid_argument(std::string(what) + " '" + std::string(name) + "' is not one of: " + names);
}

const DTypeInfo& info(DType dtype) { return dtypes[static_cast<size_t>(dtype)]; }

}  // namespace

DType dtype_from_name(std::string_view name) { return from_name<DType>("dtype", name, dtypes); }
Reduction reduction_from_name(std::string_view name) {
    return from_name<Reduction>("reduction", name, reductions);
}
std::string_view name_of(DType dtype) { return info(dtype).name; }

size_t item_bytes(DType dtype) { return info(dtype).item_bytes; }
size_t accumulator_item_bytes(DType dtype) { return info(dtype).accumulator_item_bytes; }

}  // namespace legato
