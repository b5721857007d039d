// Chance that every member can compute: a function of a seed, a place and an index, without state.
#pragma once

#include <cstdint>

namespace legato {

// splitmix64's last steps.
constexpr uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// 32 bits for the item at `index` (lowbias32), cheap enough for one in every item and simple enough to
// vectorise.
constexpr uint32_t chance(uint64_t key, uint32_t index) {
    uint32_t x = (index ^ static_cast<uint32_t>(key)) * 0x9e3779b9u + static_cast<uint32_t>(key >> 32);
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

}  // namespace legato
