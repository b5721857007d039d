// CRC-32C (Castagnoli), the checksum of every frame.
#pragma once

#include <cstddef>
#include <cstdint>

namespace legato {

// It chains: crc32c(b, n, crc32c(a, m)) is the checksum of a followed by b.
uint32_t crc32c(const void* data, size_t num_bytes, uint32_t seed = 0);

}  // namespace legato
