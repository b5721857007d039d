// Why a task, or a whole engine, failed.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace legato {

// The numbers travel in abort frames.
enum class FailureKind : uint8_t { peer_lost = 0, protocol, mismatch, closed, internal, corrupted };

struct Failure {
    FailureKind kind = FailureKind::closed;
    int32_t rank = -1;
    int64_t tensor = -1;
    int64_t step = -1;
    std::string message;
};

// A peer broke the protocol. Thrown while a frame is looked at, before memory is touched; the connection that
// brought the frame catches it, ends itself and fails whoever depended on the peer.
class ProtocolError : public std::runtime_error {
  public:
    explicit ProtocolError(const std::string& message, int64_t tensor = -1, int64_t step = -1,
                           FailureKind kind = FailureKind::protocol)
        : std::runtime_error(message), kind(kind), tensor(tensor), step(step) {}

    FailureKind kind;
    int64_t tensor;
    int64_t step;
};

// A link is at its end: closed by the peer, or broken.
class ConnectionEnded : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace legato
