// The ways to compute crc32c (instruction_set.cpp chooses), and what they share: checksums as polynomials
// over GF(2), modulo the Castagnoli polynomial.
#pragma once

#include <cstddef>
#include <cstdint>

namespace legato {

// Eight bytes at a time through tables, on any machine.
uint32_t crc32c_tables(const void* data, size_t num_bytes, uint32_t seed);

// With the machine's own instruction (ARMv8 CRC32, SSE4.2), three streams at a time. Only where the machine
// has it.
uint32_t crc32c_instructions(const void* data, size_t num_bytes, uint32_t seed);

// The same beside carry-less multiplication (ARMv8 PMULL): 1.5 times as fast.
uint32_t crc32c_folding(const void* data, size_t num_bytes, uint32_t seed);

// Bit 31 is the coefficient of x^0.
constexpr uint32_t castagnoli = 0x82f63b78;
constexpr uint32_t one = 0x80000000;

constexpr uint32_t times_x(uint32_t a) { return a >> 1 ^ (a & 1 ? castagnoli : 0); }

constexpr uint32_t times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t term = one; term; term >>= 1, b = times_x(b))
        if (a & term) product ^= b;
    return product;
}

// x^n.
constexpr uint32_t power(size_t n) {
    uint32_t power = one;
    for (size_t i = 0; i < n; ++i) power = times_x(power);
    return power;
}

// x^(8 n): what n bytes of zeros multiply a checksum by.
constexpr uint32_t zeros(size_t num_bytes) { return power(8 * num_bytes); }

}  // namespace legato
