#include "engine/net/outgoing.hpp"

#include "kernels/crc32c.hpp"

namespace legato {

uint32_t Outgoing::checksum(uint64_t offset, size_t num_bytes) const {
    return crc32c(data + offset, num_bytes);
}

}  // namespace legato
