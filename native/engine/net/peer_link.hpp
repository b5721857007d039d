// A link to another member, over which frames travel both ways: heartbeats, goodbyes and what its end means.
// How the frames travel is for its kinds to say: through a socket (connection.hpp), or through shared memory
// (shared_link.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/net/descriptor.hpp"
#include "engine/net/link.hpp"
#include "engine/net/membership.hpp"
#include "engine/protocol/failure.hpp"

namespace legato {

class PeerLink : public Link {
  public:
    struct Options {
        uint16_t member;
        uint32_t epoch;
        size_t chunk_bytes;
        size_t num_hosts;
    };

    PeerLink(LinkWaker& waker, int32_t peer, Descriptor socket, const Options& options,
             Membership& membership);

    int descriptor() const override { return socket_.get(); }
    void tick() override;
    void leave() override;
    void close() override;
    bool is_closed() const override { return !socket_; }

  protected:
    // Send what is queued, and the goodbye when that is all and the link is leaving.
    virtual void write() = 0;
    virtual uint64_t num_bytes_read() const = 0;
    virtual uint64_t num_bytes_written() const = 0;
    // The link is about to be closed: what it still holds goes nowhere.
    virtual void let_go() = 0;
    const Descriptor& socket() const { return socket_; }

    // Run what may end the link, and end it then.
    template <typename Work>
    void guarded(Work work) {
        try {
            work();
        } catch (const ProtocolError& error) {
            close_as_lost(error.kind, error.tensor, error.step, error.what());
        } catch (const ConnectionEnded& end) {
            if (is_leaving_)
                close();
            else
                close_as_lost(FailureKind::peer_lost, -1, -1, end.what());
        }
    }
    // The peer has said goodbye.
    void hear_goodbye();
    bool must_say_goodbye() const { return is_leaving_ && !has_said_goodbye_; }
    void say_goodbye();
    bool has_said_goodbye() const { return has_said_goodbye_; }

    const Options options_;

  private:
    ControlFrame control_frame(FrameKind kind) const;
    void close_as_lost(FailureKind kind, int64_t tensor, int64_t step, const std::string& why);

    Membership& membership_;
    Descriptor socket_;
    bool is_leaving_ = false;
    bool has_said_goodbye_ = false;
    uint64_t last_read_ = 0;  // bytes, at the last tick
    uint64_t last_written_ = 0;
    int num_silent_ticks_ = 0;
};

}  // namespace legato
