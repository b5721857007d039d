// Binds the codecs of native/kernels: what a tensor is declared with, and for tests and measurements what it
// does.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/buffer.hpp"
#include "engine/protocol/coding.hpp"
#include "kernels/chance.hpp"
#include "kernels/codec.hpp"
#include "kernels/instruction_set.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {

namespace {

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data()); }

void encode(const Codec& codec, nb::handle output_object, nb::handle items_object, uint64_t place,
            uint32_t contributor, float scale) {
    const Buffer output("output", output_object, Access::write);
    const Buffer items("items", items_object, Access::read);
    const size_t num_items = items.num_items(sizeof(float));
    output.require_items(codec.encoded_bytes(num_items), 1);
    const nb::gil_scoped_release release;
    codec.encode(bytes_of(output), bytes_of(items), num_items, {place, contributor, scale});
}

void decode(const Codec& codec, nb::handle items_object, nb::handle input_object, uint64_t place,
            uint32_t contributor, float scale) {
    const Buffer items("items", items_object, Access::write);
    const Buffer input("input", input_object, Access::read);
    const size_t num_items = items.num_items(sizeof(float));
    input.require_items(codec.encoded_bytes(num_items), 1);
    if (!codec.is_valid(bytes_of(input), num_items))
        throw std::invalid_argument("input is not of this codec");
    const nb::gil_scoped_release release;
    codec.decode(bytes_of(items), bytes_of(input), num_items, {place, contributor, scale});
}

float largest(nb::handle items_object) {
    const Buffer items("items", items_object, Access::read);
    const size_t num_items = items.num_items(sizeof(float));
    const nb::gil_scoped_release release;
    return current_instruction_set().codec_loops->largest(items.data(), num_items);
}

template <typename Enum>
Enum choice(std::string_view name, std::string_view first, std::string_view second) {
    if (name == first) return static_cast<Enum>(0);
    if (name == second) return static_cast<Enum>(1);
    throw std::invalid_argument("'" + std::string(name) + "' is neither " + std::string(first) + " nor " +
                                std::string(second));
}

}  // namespace

void bind_codecs(nb::module_& module) {
    nb::class_<Codec>(module, "Codec")
        .def_static("raw", raw_codec)
        .def_static("fp16", [] { return cast_codec(DType::f16); })
        .def_static("bf16", [] { return cast_codec(DType::bf16); })
        .def_static("onebit", onebit_codec, "scaling"_a)
        .def_static("topk", topk_codec, "density"_a)
        .def_static("randomk", randomk_codec, "density"_a, "seed"_a)
        .def_static(
            "dithering",
            [](int num_levels, std::string_view levels, std::string_view norm, uint64_t seed) {
                return dithering_codec(num_levels, choice<DitherLevels>(levels, "linear", "natural"),
                                       choice<DitherNorm>(norm, "max", "l2"), seed);
            },
            "num_levels"_a, "levels"_a, "norm"_a, "seed"_a)
        .def_static("int8", int8_codec)
        .def("encoded_bytes", &Codec::encoded_bytes, "num_items"_a)
        .def("encode", encode, "output"_a, "items"_a, nb::kw_only(), "place"_a = 0, "contributor"_a = 0,
             "scale"_a = 1.0F)
        .def("decode", decode, "items"_a, "input"_a, nb::kw_only(), "place"_a = 0, "contributor"_a = 0,
             "scale"_a = 1.0F);
    module.def("largest", largest, "items"_a);
    module.def("place_of", place_of, "tensor"_a, "step"_a, "offset"_a);
    module.def("mix", mix, "x"_a);
}

}  // namespace legato
