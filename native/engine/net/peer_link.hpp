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
        double heartbeat_s;
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
            if (is_deaf_)
                close();  // it cannot be told either
            else
                give_up(error.kind, error.tensor, error.step, words_for(error));
        } catch (const ConnectionEnded& end) {
            if (is_leaving_)
                close();
            else
                close_as_lost(end.what());
        }
    }
    // The peer has said goodbye.
    void hear_goodbye();
    bool must_say_goodbye() const { return is_leaving_ && !has_said_goodbye_; }
    void say_goodbye();
    bool has_said_goodbye() const { return has_said_goodbye_; }
    // Nothing that the peer still sends is looked at.
    bool is_deaf() const { return is_deaf_; }

    const Options options_;

  private:
    ControlFrame control_frame(FrameKind kind) const;
    std::string between() const;
    std::string words_for(const ProtocolError& error) const;
    void close_as_lost(const std::string& why);
    // The link has failed while bytes may still travel: the peer is told why, so that both ends say the same.
    void give_up_silent();
    void give_up(FailureKind kind, int64_t tensor, int64_t step, const std::string& message);

    Membership& membership_;
    Descriptor socket_;
    bool is_leaving_ = false;
    bool has_said_goodbye_ = false;
    bool is_deaf_ = false;
    uint64_t last_read_ = 0;  // bytes, at the last tick
    uint64_t last_written_ = 0;
    int num_silent_ticks_ = 0;
};

}  // namespace legato
