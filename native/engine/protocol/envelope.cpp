#include "engine/protocol/envelope.hpp"

#include <string>

#include "engine/protocol/failure.hpp"

namespace legato {

void Envelope::check(const Header& header) const {
    if (header.sender != peer)
        throw ProtocolError("a frame that says it is from member " + std::to_string(header.sender));
    if (header.epoch != epoch)
        throw ProtocolError("a frame of epoch " + std::to_string(header.epoch) + ", expected " +
                            std::to_string(epoch));
    const bool is_data = header.kind == FrameKind::push || header.kind == FrameKind::sum;
    if (header.payload_bytes > (is_data ? chunk_bytes : kMaxControlBytes))
        throw ProtocolError("an oversized frame of " + std::to_string(header.payload_bytes) + " bytes",
                            header.tensor, header.step);
}

}  // namespace legato
