// Binds native/kernels: arrays come as anything with a contiguous buffer, because numpy knows no bfloat16.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string_view>
#include <utility>

#include "bindings/buffer.hpp"
#include "kernels/crc32c.hpp"
#include "kernels/instruction_set.hpp"
#include "kernels/measure.hpp"
#include "kernels/reduce.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {

namespace {

void load_buffer(std::string_view dtype_name, nb::handle accumulator_object, nb::handle input_object) {
    const DType dtype = dtype_from_name(dtype_name);
    const Buffer accumulator("accumulator", accumulator_object, Access::write);
    const Buffer input("input", input_object, Access::read);
    const size_t num_items = accumulator.num_items(accumulator_item_bytes(dtype));
    input.require_items(num_items, item_bytes(dtype));
    const nb::gil_scoped_release release;
    load(dtype, accumulator.data(), input.data(), num_items);
}

void reduce_buffer(std::string_view dtype_name, std::string_view reduction_name,
                   nb::handle accumulator_object, nb::handle input_object) {
    const DType dtype = dtype_from_name(dtype_name);
    const Reduction reduction = reduction_from_name(reduction_name);
    const Buffer accumulator("accumulator", accumulator_object, Access::write);
    const Buffer input("input", input_object, Access::read);
    const size_t num_items = accumulator.num_items(accumulator_item_bytes(dtype));
    input.require_items(num_items, item_bytes(dtype));
    const nb::gil_scoped_release release;
    reduce(dtype, reduction, accumulator.data(), input.data(), num_items);
}

void store_buffer(std::string_view dtype_name, nb::handle output_object, nb::handle accumulator_object,
                  double factor) {
    const DType dtype = dtype_from_name(dtype_name);
    const Buffer output("output", output_object, Access::write);
    const Buffer accumulator("accumulator", accumulator_object, Access::read);
    const size_t num_items = output.num_items(item_bytes(dtype));
    accumulator.require_items(num_items, accumulator_item_bytes(dtype));
    const nb::gil_scoped_release release;
    store(dtype, output.data(), accumulator.data(), factor, num_items);
}

void add_buffer(std::string_view dtype_name, nb::handle total_object, nb::handle input_object) {
    const DType dtype = dtype_from_name(dtype_name);
    const Buffer total("total", total_object, Access::write);
    const Buffer input("input", input_object, Access::read);
    const size_t num_items = total.num_items(item_bytes(dtype));
    input.require_items(num_items, item_bytes(dtype));
    const nb::gil_scoped_release release;
    add(dtype, total.data(), input.data(), num_items);
}

void scale_buffer(std::string_view dtype_name, nb::handle data_object, double factor) {
    const DType dtype = dtype_from_name(dtype_name);
    const Buffer data("data", data_object, Access::write);
    const size_t num_items = data.num_items(item_bytes(dtype));
    const nb::gil_scoped_release release;
    scale(dtype, data.data(), factor, num_items);
}

std::pair<double, double> measure_buffer(std::string_view dtype_name, nb::handle items_object) {
    const DType dtype = dtype_from_name(dtype_name);
    const Buffer items("items", items_object, Access::read);
    const size_t num_items = items.num_items(item_bytes(dtype));
    const nb::gil_scoped_release release;
    const Measure found = measure(dtype, items.data(), num_items);
    return {found.sum_of_squares, found.largest};
}

uint32_t crc32c_buffer(nb::handle data_object, uint32_t seed) {
    const Buffer data("data", data_object, Access::read);
    const nb::gil_scoped_release release;
    return crc32c(data.data(), data.num_bytes(), seed);
}

}  // namespace

void bind_kernels(nb::module_& module) {
    module.def("load", load_buffer, "dtype"_a, "accumulator"_a, "input"_a);
    module.def("reduce", reduce_buffer, "dtype"_a, "reduction"_a, "accumulator"_a, "input"_a);
    module.def("store", store_buffer, "dtype"_a, "output"_a, "accumulator"_a, "factor"_a = 1.0);
    module.def("add", add_buffer, "dtype"_a, "total"_a, "input"_a);
    module.def("scale", scale_buffer, "dtype"_a, "data"_a, "factor"_a);
    module.def("measure", measure_buffer, "dtype"_a, "items"_a);
    module.def("crc32c", crc32c_buffer, "data"_a, "seed"_a = 0);
    module.def("instruction_set", instruction_set);
    module.def("available_instruction_sets", available_instruction_sets);
    module.def("set_instruction_set", set_instruction_set, "name"_a);
}

}  // namespace legato
