#include "kernels/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "kernels/crc32c_variants.hpp"
#include "kernels/instruction_set.hpp"

#if defined(__aarch64__)
#include <arm_acle.h>
#define LEGATO_CRC_TARGET __attribute__((target("+crc")))
#elif defined(__x86_64__)
#include <nmmintrin.h>
#define LEGATO_CRC_TARGET __attribute__((target("sse4.2")))
#endif

namespace legato {

static_assert(std::endian::native == std::endian::little, "the words of a frame are read in memory order");

namespace {

using Table = std::array<uint32_t, 256>;

// Every byte that may stand at `position` of a checksum, times `factor`.
constexpr Table multiples(size_t position, uint32_t factor) {
    Table table{};
    for (uint32_t byte = 0; byte < 256; ++byte) table[byte] = times(byte << (8 * position), factor);
    return table;
}

uint64_t read_word(const unsigned char* data) {
    uint64_t word;
    std::memcpy(&word, data, sizeof word);
    return word;
}

// slices[k][byte]: the checksum of the byte followed by k bytes of zeros ("slicing by 8").
constexpr std::array<Table, 8> slices = [] {
    std::array<Table, 8> tables{};
    for (size_t k = 0; k < 8; ++k) tables[k] = multiples(0, zeros(k + 1));
    return tables;
}();

uint32_t step_byte(uint32_t crc, unsigned char byte) { return crc >> 8 ^ slices[0][(crc ^ byte) & 0xff]; }

uint32_t step_word(uint32_t crc, uint64_t word) {
    word ^= crc;
    uint32_t result = 0;
    for (size_t k = 0; k < 8; ++k) result ^= slices[7 - k][word >> (8 * k) & 0xff];
    return result;
}

}  // namespace

uint32_t crc32c_tables(const void* data, size_t num_bytes, uint32_t seed) {
    auto* next = static_cast<const unsigned char*>(data);
    uint32_t crc = ~seed;
    for (; num_bytes >= 8; next += 8, num_bytes -= 8) crc = step_word(crc, read_word(next));
    for (; num_bytes; ++next, --num_bytes) crc = step_byte(crc, *next);
    return ~crc;
}

#if defined(LEGATO_CRC_TARGET)

namespace {

LEGATO_CRC_TARGET inline uint32_t instruction(uint32_t crc, uint64_t word) {
#if defined(__aarch64__)
    return __crc32cd(crc, word);
#else
    return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
#endif
}

LEGATO_CRC_TARGET inline uint32_t instruction(uint32_t crc, unsigned char byte) {
#if defined(__aarch64__)
    return __crc32cb(crc, byte);
#else
    return _mm_crc32_u8(crc, byte);
#endif
}

// The instruction takes two or three cycles, but one can start in each: so three streams, side by side.
constexpr size_t stream_bytes = 1024;

constexpr std::array<Table, 4> past_stream = [] {
    std::array<Table, 4> tables{};
    for (size_t k = 0; k < 4; ++k) tables[k] = multiples(k, zeros(stream_bytes));
    return tables;
}();

// The checksum after a stream of zeros: what remains of `crc` at the end of the stream behind it.
uint32_t skip_stream(uint32_t crc) {
    return past_stream[0][crc & 0xff] ^ past_stream[1][crc >> 8 & 0xff] ^ past_stream[2][crc >> 16 & 0xff] ^
           past_stream[3][crc >> 24];
}

}  // namespace

LEGATO_CRC_TARGET uint32_t crc32c_instructions(const void* data, size_t num_bytes, uint32_t seed) {
    auto* next = static_cast<const unsigned char*>(data);
    uint32_t crc = ~seed;
    for (; num_bytes >= 3 * stream_bytes; next += 3 * stream_bytes, num_bytes -= 3 * stream_bytes) {
        uint32_t second = 0;
        uint32_t third = 0;
        for (size_t i = 0; i < stream_bytes; i += 8) {
            crc = instruction(crc, read_word(next + i));
            second = instruction(second, read_word(next + stream_bytes + i));
            third = instruction(third, read_word(next + 2 * stream_bytes + i));
        }
        crc = skip_stream(skip_stream(crc) ^ second) ^ third;
    }
    for (; num_bytes >= 8; next += 8, num_bytes -= 8) crc = instruction(crc, read_word(next));
    for (; num_bytes; ++next, --num_bytes) crc = instruction(crc, *next);
    return ~crc;
}

#endif

uint32_t crc32c(const void* data, size_t num_bytes, uint32_t seed) {
    return current_instruction_set().crc32c(data, num_bytes, seed);
}

}  // namespace legato
