// topk: the items of the largest magnitude, with their indices; all others are decoded as zero. Of equals the
// first come first, and NaN is larger than everything.
//
//   offset 0   k indices, 4 bytes each, ascending; then the k items
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#include "kernels/codec.hpp"

namespace legato {

namespace {

constexpr size_t kSamples = 1024;
constexpr size_t kBlock = 32;

uint32_t magnitude_at(const std::byte* items, size_t i) {
    uint32_t bits;
    std::memcpy(&bits, items + i * sizeof bits, sizeof bits);
    return bits & 0x7fffffff;
}

// The k-th largest of some magnitudes.
uint32_t select(std::vector<uint32_t>& magnitudes, size_t k) {
    const auto nth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k) - 1;
    std::nth_element(magnitudes.begin(), nth, magnitudes.end(), std::greater<>());
    return *nth;
}

// A magnitude that somewhat more than k items should reach, from a sample of them.
uint32_t guess(const std::byte* items, size_t num_items, size_t k) {
    const size_t stride = std::max<size_t>(num_items / kSamples, 1);
    std::vector<uint32_t> sample;
    for (size_t i = stride / 2; i < num_items; i += stride) sample.push_back(magnitude_at(items, i));
    const double expected =
        static_cast<double>(k) / static_cast<double>(num_items) * static_cast<double>(sample.size());
    const auto rank = static_cast<size_t>(expected + 3 * std::sqrt(expected) + 2);
    return rank >= sample.size() ? 0 : select(sample, rank);
}

// The indices of all items that reach a magnitude, in order. Most blocks have none, and a block is looked at
// as a whole.
void collect(std::vector<uint32_t>& found, const std::byte* items, size_t num_items, uint32_t least) {
    found.resize(num_items);
    size_t count = 0;
    for (size_t begin = 0; begin < num_items; begin += kBlock) {
        const size_t end = std::min(begin + kBlock, num_items);
        uint32_t most = 0;
        for (size_t i = begin; i < end; ++i) most = std::max(most, magnitude_at(items, i));
        if (most < least) continue;
        for (size_t i = begin; i < end; ++i) {
            found[count] = static_cast<uint32_t>(i);
            count += magnitude_at(items, i) >= least;
        }
    }
    found.resize(count);
}

class TopK final : public Codec {
  public:
    explicit TopK(double density) : Codec(CodecId::topk), density_(density) {}

    size_t encoded_bytes(size_t num_items) const override { return 8 * num_kept(density_, num_items); }

    void encode(std::byte* output, const std::byte* items, size_t num_items,
                const CodecContext&) const override {
        const size_t k = num_kept(density_, num_items);
        // Kept from call to call: fresh pages would cost more than the search.
        thread_local std::vector<uint32_t> candidates;
        thread_local std::vector<uint32_t> magnitudes;
        collect(candidates, items, num_items, guess(items, num_items, k));
        if (candidates.size() < k) collect(candidates, items, num_items, 0);
        magnitudes.resize(candidates.size());
        std::transform(candidates.begin(), candidates.end(), magnitudes.begin(),
                       [=](uint32_t i) { return magnitude_at(items, i); });
        const uint32_t least = k > 0 ? select(magnitudes, k) : 0;
        const auto above =
            std::count_if(magnitudes.begin(), magnitudes.end(), [=](uint32_t m) { return m > least; });
        size_t num_equal = k - static_cast<size_t>(above);
        std::byte* values = output + 4 * k;
        for (const uint32_t i : candidates) {
            const uint32_t size = magnitude_at(items, i);
            if (size < least || (size == least && num_equal == 0)) continue;
            num_equal -= size == least;
            std::memcpy(output, &i, 4);
            std::memcpy(values, items + 4 * static_cast<size_t>(i), 4);
            output += 4;
            values += 4;
        }
    }

    void decode(std::byte* items, const std::byte* input, size_t num_items,
                const CodecContext&) const override {
        const size_t k = num_kept(density_, num_items);
        std::memset(items, 0, num_items * sizeof(float));
        for (size_t j = 0; j < k; ++j) std::memcpy(items + 4 * index(input, j), input + 4 * (k + j), 4);
    }

    bool is_valid(const std::byte* input, size_t num_items) const override {
        const size_t k = num_kept(density_, num_items);
        for (size_t j = 0; j < k; ++j)
            if (index(input, j) >= num_items) return false;
        return true;
    }

  private:
    static size_t index(const std::byte* input, size_t j) {
        uint32_t i;
        std::memcpy(&i, input + 4 * j, sizeof i);
        return i;
    }

    const double density_;
};

}  // namespace

size_t num_kept(double density, size_t num_items) {
    const auto nearest = static_cast<size_t>(density * static_cast<double>(num_items) + 0.5);
    return std::min(std::max<size_t>(nearest, 1), num_items);
}

CodecPtr topk_codec(double density) {
    if (!(density > 0.0 && density <= 1.0)) throw std::invalid_argument("a density is above 0 and at most 1");
    return std::make_shared<TopK>(density);
}

}  // namespace legato
