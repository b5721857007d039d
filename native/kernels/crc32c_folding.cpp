// crc32c on two units of an ARM core side by side: its CRC instruction takes 8 bytes a cycle, and while it
// does, carry-less multiplication folds bytes of another region upon each other, 64 at a time.
#if defined(__aarch64__)

#include <arm_acle.h>
#include <arm_neon.h>

#include <cstring>

#include "kernels/crc32c_variants.hpp"

#define LEGATO_FOLDING_TARGET __attribute__((target("+crc+crypto")))

namespace legato {

namespace {

// A block: a region to fold, then four streams for the instruction, each as long as four take to fold the
// region.
constexpr size_t num_rounds = 128;
constexpr size_t folded_bytes = 64 * num_rounds;
constexpr size_t stream_bytes = 16 * num_rounds;
constexpr size_t block_bytes = folded_bytes + 4 * stream_bytes;

// What 16 bytes are multiplied by to stand `num_bytes` further back: the low 8 bytes come first in memory, so
// theirs is the higher power. A product of reflected numbers is one bit short, and the instruction that ends
// it all multiplies by x^32: hence 31 and -33.
constexpr uint64x2_t further_back(size_t num_bytes) {
    return uint64x2_t{power(8 * num_bytes + 31), power(8 * num_bytes - 33)};
}

LEGATO_FOLDING_TARGET inline uint64x2_t load(const unsigned char* data) {
    return vreinterpretq_u64_u8(vld1q_u8(data));
}

// `sixteen` moved back upon `next`.
LEGATO_FOLDING_TARGET inline uint64x2_t fold(uint64x2_t sixteen, uint64x2_t factors, uint64x2_t next) {
    const auto a = vreinterpretq_p64_u64(sixteen);
    const auto b = vreinterpretq_p64_u64(factors);
    const auto low = vreinterpretq_u64_p128(vmull_p64(vgetq_lane_p64(a, 0), vgetq_lane_p64(b, 0)));
    const auto high = vreinterpretq_u64_p128(vmull_high_p64(a, b));
    return veorq_u64(veorq_u64(low, high), next);
}

LEGATO_FOLDING_TARGET inline uint32_t step(uint32_t crc, const unsigned char* data) {
    uint64_t word;
    std::memcpy(&word, data, sizeof word);
    return __crc32cd(crc, word);
}

// A checksum that `num_bytes` follow, not yet reduced.
template <size_t num_bytes>
LEGATO_FOLDING_TARGET inline uint64_t followed_by(uint32_t crc) {
    constexpr uint32_t factor = power(8 * num_bytes - 33);
    return vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64(crc, factor)), 0);
}

LEGATO_FOLDING_TARGET uint32_t checksum_block(const unsigned char* block, uint32_t crc) {
    constexpr uint64x2_t by_64 = further_back(64);
    constexpr uint64x2_t by_16 = further_back(16);
    const unsigned char* stream = block + folded_bytes;
    uint64x2_t folded[4];
    for (size_t k = 0; k < 4; ++k) folded[k] = load(block + 16 * k);
    folded[0] = veorq_u64(folded[0], uint64x2_t{crc, 0});
    uint32_t streams[4] = {};
    for (size_t i = 0; i < num_rounds; ++i) {
        // The first 64 bytes are where the others are folded to: there is one round less of these.
        if (i > 0)
            for (size_t k = 0; k < 4; ++k) folded[k] = fold(folded[k], by_64, load(block + 64 * i + 16 * k));
        for (size_t k = 0; k < 4; ++k) {
            streams[k] = step(streams[k], stream + k * stream_bytes + 16 * i);
            streams[k] = step(streams[k], stream + k * stream_bytes + 16 * i + 8);
        }
    }
    for (size_t k = 1; k < 4; ++k) folded[k] = fold(folded[k - 1], by_16, folded[k]);
    crc = __crc32cd(__crc32cd(0, vgetq_lane_u64(folded[3], 0)), vgetq_lane_u64(folded[3], 1));
    const uint64_t joined = followed_by<4 * stream_bytes>(crc) ^ followed_by<3 * stream_bytes>(streams[0]) ^
                            followed_by<2 * stream_bytes>(streams[1]) ^ followed_by<stream_bytes>(streams[2]);
    return __crc32cd(0, joined) ^ streams[3];
}

}  // namespace

LEGATO_FOLDING_TARGET uint32_t crc32c_folding(const void* data, size_t num_bytes, uint32_t seed) {
    auto* next = static_cast<const unsigned char*>(data);
    uint32_t crc = ~seed;
    for (; num_bytes >= block_bytes; next += block_bytes, num_bytes -= block_bytes)
        crc = checksum_block(next, crc);
    return crc32c_instructions(next, num_bytes, ~crc);
}

}  // namespace legato

#endif
