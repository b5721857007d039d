// Durations as Python has them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace legato {

inline std::chrono::nanoseconds duration(double seconds) {
    constexpr double kLongest = 1e9;  // what it takes to overflow nanoseconds is more than anyone waits
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(std::max(seconds, 0.0), kLongest) * 1e9));
}

}  // namespace legato
