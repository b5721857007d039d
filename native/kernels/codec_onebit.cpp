// onebit: the sign of each item, and one scale for all (Seide et al., 2014): the mean magnitude, or 1 without
// scaling.
//
//   offset 0   the scale, a float; then one bit for each item, in words of 32
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/codec.hpp"
#include "kernels/instruction_set.hpp"

namespace legato {

namespace {

class OneBit final : public Codec {
  public:
    explicit OneBit(bool scaling) : Codec(CodecId::onebit), scaling_(scaling) {}

    size_t encoded_bytes(size_t num_items) const override {
        return sizeof(float) + (num_items + 31) / 32 * 4;
    }

    void encode(std::byte* output, const std::byte* items, size_t num_items,
                const CodecContext&) const override {
        const CodecLoops& loops = *current_instruction_set().codec_loops;
        const double mean = loops.sum_of_magnitudes(items, num_items) / static_cast<double>(num_items);
        const float unit = scaling_ ? static_cast<float>(mean) : 1.0F;
        const float scale = std::isfinite(mean) ? unit : std::numeric_limits<float>::quiet_NaN();
        std::memcpy(output, &scale, sizeof scale);
        loops.pack_signs(output + sizeof scale, items, num_items);
    }

    void decode(std::byte* items, const std::byte* input, size_t num_items,
                const CodecContext&) const override {
        float scale;
        std::memcpy(&scale, input, sizeof scale);
        current_instruction_set().codec_loops->unpack_signs(items, input + sizeof scale, scale, num_items);
    }

  private:
    const bool scaling_;
};

}  // namespace

CodecPtr onebit_codec(bool scaling) { return std::make_shared<OneBit>(scaling); }

}  // namespace legato
