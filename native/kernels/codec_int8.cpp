// int8: each item as a whole number of units, 127 of which are the scale in the context. Who sums needs no
// scale: with one of 127 the unit is 1, and the items are the numbers as they travel.
//
//   offset 0   one byte for each item
#include <cmath>
#include <cstring>

#include "kernels/codec.hpp"
#include "kernels/instruction_set.hpp"

namespace legato {

namespace {

constexpr float kUnits = 127.0F;

class Int8 final : public Codec {
  public:
    Int8() : Codec(CodecId::int8) {}

    size_t encoded_bytes(size_t num_items) const override { return num_items; }

    void encode(std::byte* output, const std::byte* items, size_t num_items,
                const CodecContext& context) const override {
        const float factor = kUnits / context.scale;
        // Zeros where the scale is zero or cannot be used: times one that is infinite or NaN they are NaN.
        if (!(factor > 0.0F && std::isfinite(factor))) {
            std::memset(output, 0, num_items);
            return;
        }
        current_instruction_set().codec_loops->quantize(output, items, factor, num_items);
    }

    void decode(std::byte* items, const std::byte* input, size_t num_items,
                const CodecContext& context) const override {
        current_instruction_set().codec_loops->dequantize(items, input, context.scale / kUnits, num_items);
    }
};

}  // namespace

CodecPtr int8_codec() { return std::make_shared<Int8>(); }

}  // namespace legato
