// What every frame of one link must say of itself, whatever it carries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/protocol/frame.hpp"

namespace legato {

struct Envelope {
    int32_t peer;  // who is at the other end
    uint32_t epoch;
    size_t chunk_bytes;

    // Throws ProtocolError for a frame of somebody else, of another epoch, or longer than agreed.
    void check(const Header& header) const;
};

}  // namespace legato
