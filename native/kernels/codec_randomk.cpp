// randomk: one item of each of k equal stretches, chosen by chance that all members share. So the indices
// need not travel, and all workers send the same ones. All other items are decoded as zero.
//
//   offset 0   the k items
#include <cstring>
#include <stdexcept>

#include "kernels/chance.hpp"
#include "kernels/codec.hpp"

namespace legato {

namespace {

class RandomK final : public Codec {
  public:
    RandomK(double density, uint64_t seed) : Codec(CodecId::randomk), density_(density), seed_(seed) {}

    size_t encoded_bytes(size_t num_items) const override { return 4 * num_kept(density_, num_items); }

    void encode(std::byte* output, const std::byte* items, size_t num_items,
                const CodecContext& context) const override {
        for_each(num_items, context,
                 [&](size_t j, size_t i) { std::memcpy(output + 4 * j, items + 4 * i, 4); });
    }

    void decode(std::byte* items, const std::byte* input, size_t num_items,
                const CodecContext& context) const override {
        std::memset(items, 0, num_items * sizeof(float));
        for_each(num_items, context,
                 [&](size_t j, size_t i) { std::memcpy(items + 4 * i, input + 4 * j, 4); });
    }

  private:
    template <typename Visitor>
    void for_each(size_t num_items, const CodecContext& context, Visitor visit) const {
        const uint64_t key = mix(seed_ ^ context.place);
        const size_t k = num_kept(density_, num_items);
        size_t begin = 0;
        for (size_t j = 0; j < k; ++j) {
            const size_t end = (j + 1) * num_items / k;
            const uint64_t random = chance(key, static_cast<uint32_t>(j));
            visit(j, begin + (random * (end - begin) >> 32));
            begin = end;
        }
    }

    const double density_;
    const uint64_t seed_;
};

}  // namespace

CodecPtr randomk_codec(double density, uint64_t seed) {
    if (!(density > 0.0 && density <= 1.0)) throw std::invalid_argument("a density is above 0 and at most 1");
    return std::make_shared<RandomK>(density, seed);
}

}  // namespace legato
