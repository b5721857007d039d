// One part on its way out, and the order in which parts leave.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "engine/protocol/frame.hpp"

namespace legato {

// Total: no two parts of one direction compare equal. At equal rank sums go before contributions, because
// they finish something.
struct Urgency {
    int32_t rank;
    bool is_contribution;
    int64_t step;
    uint64_t sequence;
    uint64_t offset;

    auto operator<=>(const Urgency&) const = default;
};

// Owned by the send queue it waits in, then by the frame that carries its last chunk. Destroyed without
// `sent` when its link ends first.
class Outgoing {
  public:
    Outgoing(const Urgency& urgency, const Header& header, const std::byte* data, uint64_t num_bytes)
        : urgency(urgency), header(header), data(data), num_bytes(num_bytes) {}
    virtual ~Outgoing() = default;
    Outgoing(const Outgoing&) = delete;
    Outgoing& operator=(const Outgoing&) = delete;

    // All bytes have been handed over. Called on the link's I/O thread.
    virtual void sent() {}
    // The checksum of the chunk at `offset`.
    virtual uint32_t checksum(uint64_t offset, size_t num_bytes) const;

    const Urgency urgency;
    const Header header;  // of its frames, but for the chunk
    const std::byte* const data;
    const uint64_t num_bytes;
};

}  // namespace legato
