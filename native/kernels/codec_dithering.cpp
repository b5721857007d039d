// dithering: each item as one of a few levels of a common norm, up or down by chance so that the mean is
// right (QSGD, Alistarh et al., 2017; natural levels: Horváth et al., 2019).
//
//   offset 0   the norm, a float; then a signed level for each item, in 2, 4 or 8 bits, lowest bits first
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "kernels/chance.hpp"
#include "kernels/codec.hpp"
#include "kernels/instruction_set.hpp"

namespace legato {

namespace {

constexpr size_t kBlock = 1024;

class Dithering final : public Codec {
  public:
    Dithering(int num_levels, DitherLevels levels, DitherNorm norm, uint64_t seed)
        : Codec(CodecId::dithering),
          num_levels_(num_levels),
          num_bits_(num_levels <= 1   ? 2
                    : num_levels <= 7 ? 4
                                      : 8),
          levels_(levels),
          norm_(norm),
          seed_(seed) {}

    size_t encoded_bytes(size_t num_items) const override {
        return sizeof(float) + (num_items * num_bits_ + 7) / 8;
    }

    void encode(std::byte* output, const std::byte* items, size_t num_items,
                const CodecContext& context) const override {
        const CodecLoops& loops = *current_instruction_set().codec_loops;
        const bool is_linear = levels_ == DitherLevels::linear;
        float norm = norm_of(items, num_items);
        const float factor = (is_linear ? static_cast<float>(num_levels_) : 1.0F) / norm;
        if (std::isinf(factor)) norm = 0.0F;  // zero, or so small that nothing can be divided by it
        std::memcpy(output, &norm, sizeof norm);
        output += sizeof norm;
        // Zeros in all other cases: times a norm that is infinite or NaN they are NaN.
        if (!(norm > 0.0F && std::isfinite(norm))) {
            std::memset(output, 0, encoded_bytes(num_items) - sizeof norm);
            return;
        }
        const auto dither = is_linear ? loops.dither_linear : loops.dither_natural;
        const uint64_t key = mix(seed_ ^ context.place ^ mix(context.contributor + 1));
        std::array<int8_t, kBlock> codes;
        for (size_t begin = 0; begin < num_items; begin += kBlock) {
            const size_t count = std::min(kBlock, num_items - begin);
            dither(codes.data(), items + begin * sizeof(float), factor, num_levels_, key,
                   static_cast<uint32_t>(begin), count);
            std::fill_n(codes.begin() + static_cast<std::ptrdiff_t>(count),
                        std::min<size_t>(3, kBlock - count), 0);
            pack(output + begin * num_bits_ / 8, codes.data(), count);
        }
    }

    void decode(std::byte* items, const std::byte* input, size_t num_items,
                const CodecContext&) const override {
        float norm;
        std::memcpy(&norm, input, sizeof norm);
        input += sizeof norm;
        // What each byte stands for: one item, two or four.
        std::array<std::array<float, 4>, 256> values;
        const size_t per_byte = 8 / num_bits_;
        const size_t mask = (1U << num_bits_) - 1;
        for (size_t byte = 0; byte < values.size(); ++byte)
            for (size_t j = 0; j < per_byte; ++j)
                values[byte][j] = value(byte >> (j * num_bits_) & mask, norm);
        const auto copy = [&](size_t i, size_t count) {
            const auto byte = static_cast<size_t>(input[i / per_byte]);
            std::memcpy(items + i * sizeof(float), values[byte].data(), count * sizeof(float));
        };
        size_t i = 0;
        if (per_byte == 2)  // told apart so that the length of each copy is known when this is compiled
            for (; i + 2 <= num_items; i += 2) copy(i, 2);
        else if (per_byte == 4)
            for (; i + 4 <= num_items; i += 4) copy(i, 4);
        else
            for (; i < num_items; ++i) copy(i, 1);
        if (i < num_items) copy(i, num_items - i);
    }

  private:
    float norm_of(const std::byte* items, size_t num_items) const {
        const CodecLoops& loops = *current_instruction_set().codec_loops;
        if (norm_ == DitherNorm::max) return loops.largest(items, num_items);
        const double sum = loops.sum_of_squares(items, num_items);
        // One NaN, whichever it came from: the same bytes on every machine.
        return std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(std::sqrt(sum));
    }

    // A block of codes, filled up with zeros.
    void pack(std::byte* output, const int8_t* codes, size_t count) const {
        const auto part = [=](size_t i, int bits, int shift) {
            return (static_cast<unsigned>(codes[i]) & ((1U << bits) - 1)) << shift;
        };
        if (num_bits_ == 8) {
            std::memcpy(output, codes, count);
        } else if (num_bits_ == 4) {
            for (size_t i = 0; 2 * i < count; ++i)
                output[i] = static_cast<std::byte>(part(2 * i, 4, 0) | part(2 * i + 1, 4, 4));
        } else {
            for (size_t i = 0; 4 * i < count; ++i)
                output[i] = static_cast<std::byte>(part(4 * i, 2, 0) | part(4 * i + 1, 2, 2) |
                                                   part(4 * i + 2, 2, 4) | part(4 * i + 3, 2, 6));
        }
    }

    // What a code of num_bits_ bits, a signed number, stands for.
    float value(size_t code, float norm) const {
        const auto level = static_cast<int>(code) - (code >> (num_bits_ - 1) ? 1 << num_bits_ : 0);
        if (levels_ == DitherLevels::linear)
            return static_cast<float>(level) * (norm / static_cast<float>(num_levels_));
        if (level == 0) return 0.0F * norm;
        return std::copysign(std::ldexp(norm, std::min(std::abs(level) - num_levels_, 0)),
                             static_cast<float>(level));
    }

    const int num_levels_;
    const size_t num_bits_;
    const DitherLevels levels_;
    const DitherNorm norm_;
    const uint64_t seed_;
};

}  // namespace

CodecPtr dithering_codec(int num_levels, DitherLevels levels, DitherNorm norm, uint64_t seed) {
    const int most = levels == DitherLevels::linear ? 127 : 32;
    if (num_levels < 1 || num_levels > most)
        throw std::invalid_argument("dithering has 1 to 127 linear levels, or 1 to 32 natural ones");
    return std::make_shared<Dithering>(num_levels, levels, norm, seed);
}

}  // namespace legato
