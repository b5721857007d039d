// One socket to one peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/descriptor.hpp"
#include "engine/frame_handler.hpp"
#include "engine/link.hpp"
#include "engine/membership.hpp"
#include "engine/receiver.hpp"
#include "engine/sender.hpp"
#include "engine/uplink.hpp"

namespace legato {

class Connection final : public Link {
  public:
    struct Options {
        uint16_t member;
        uint32_t epoch;
        size_t chunk_bytes;
    };

    // Takes over a prepared socket.
    Connection(LinkWaker& waker, int32_t peer, Descriptor socket, const Options& options,
               FrameHandler& handler, Membership& membership, Traffic& traffic, Uplink& uplink);

    int descriptor() const override { return socket_.get(); }
    void notice(uint32_t events) override;
    bool service() override;
    void tick() override;
    void abandon() override;
    void leave() override;
    void close() override;
    bool is_closed() const override { return !socket_; }

  private:
    // Run what may end the connection, and end it then.
    template <typename Work>
    void guarded(Work work);
    void read();
    void write();
    void say_goodbye();
    void close_as_lost(FailureKind kind, int64_t tensor, int64_t step, const std::string& why);

    const Options options_;
    Membership& membership_;
    Descriptor socket_;
    Receiver receiver_;
    Sender sender_;
    Uplink* const uplink_;  // null where the socket stays on this machine

    bool can_read_ = true;
    bool can_write_ = true;
    bool has_hung_up_ = false;
    bool has_work_ = true;  // the queue is not known to be empty
    bool is_leaving_ = false;
    bool has_said_goodbye_ = false;
    uint64_t num_bytes_read_ = 0;  // at the last tick
    uint64_t num_bytes_written_ = 0;
    int num_silent_ticks_ = 0;
};

}  // namespace legato
