// What a connection asks of the member it belongs to about each frame. Called on I/O threads.
#pragma once

#include <cstddef>

#include "engine/protocol/frame.hpp"

namespace legato {

class FrameHandler {
  public:
    virtual ~FrameHandler() = default;

    // A header has come. Throws ProtocolError when its frame must not be taken; returns where its payload
    // belongs, or null when it is to be staged.
    virtual std::byte* accept(const Header& header) = 0;
    // The payload has come too, and its checksum is right. Throws ProtocolError like `accept`.
    virtual void deliver(const Header& header, const std::byte* payload) = 0;
};

}  // namespace legato
