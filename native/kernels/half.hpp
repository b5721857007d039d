// The two 16-bit floating-point types, and their conversion in software: to nearest even, NaN stays NaN.
// The results are those of the hardware's instructions (F16C, NEON), bit for bit.
#pragma once

#include <bit>
#include <cstdint>

namespace legato {

// IEEE 754 binary16: 1 bit sign, 5 exponent, 10 fraction.
struct Half {
    uint16_t bits;
};

// The upper half of a float: 1 bit sign, 8 exponent, 7 fraction.
struct BFloat16 {
    uint16_t bits;
};

inline float widen(Half half) {
    const uint32_t sign = (half.bits & 0x8000u) << 16;
    const uint32_t magnitude = half.bits & 0x7fffu;
    uint32_t bits;
    if (magnitude > 0x7c00)  // NaN, made quiet
        bits = 0x7fc00000 | magnitude << 13;
    else if (magnitude == 0x7c00)
        bits = 0x7f800000;
    else if (magnitude >= 0x0400)  // the exponent's bias grows from 15 to 127
        bits = (magnitude << 13) + (112u << 23);
    else  // zero and denormals: a multiple of 2^-24, which a float holds as a normal number
        bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
    return std::bit_cast<float>(sign | bits);
}

template <typename Narrow>
Narrow narrow(float value);

template <>
inline Half narrow<Half>(float value) {
    const uint32_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000;
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffff;
    uint32_t bits;
    if (magnitude > 0x7f800000)  // NaN, made quiet
        bits = 0x7e00 | (magnitude >> 13 & 0x3ff);
    else if (magnitude >= 0x477ff000)  // from 65520 on, half way to the number after the largest
        bits = 0x7c00;
    else if (magnitude >= 0x38800000)  // add almost half of the last bit, exactly half if that bit is set
        bits = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    else  // zero and denormals: beside 0.5, 0x3f000000, the last bit of a float is 2^-24 too: + rounds
        bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    return {static_cast<uint16_t>(sign | bits)};
}

inline float widen(BFloat16 half) { return std::bit_cast<float>(static_cast<uint32_t>(half.bits) << 16); }

template <>
inline BFloat16 narrow<BFloat16>(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t quiet = bits | 0x400000;
    return {static_cast<uint16_t>((value == value ? rounded : quiet) >> 16)};
}

}  // namespace legato
