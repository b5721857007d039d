// One socket to one peer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/net/peer_link.hpp"
#include "engine/net/receiver.hpp"
#include "engine/net/records.hpp"
#include "engine/net/sender.hpp"
#include "engine/net/uplink.hpp"
#include "engine/protocol/frame_handler.hpp"

namespace legato {

class Connection final : public PeerLink {
  public:
    // Takes over a prepared socket.
    Connection(LinkWaker& waker, int32_t peer, Descriptor socket, const Options& options,
               FrameHandler& handler, Membership& membership, Traffic& traffic, Uplink& uplink, Seals seals);

    void notice(uint32_t events) override;
    bool service() override;
    void abandon() override;

  private:
    void read();
    // What still comes on a link that has been given up.
    void discard();
    void write() override;
    uint64_t num_bytes_read() const override { return receiver_.num_bytes_read(); }
    uint64_t num_bytes_written() const override { return sender_.num_bytes_written(); }
    void let_go() override;

    Receiver receiver_;
    Sender sender_;
    Uplink* const uplink_;  // null where the socket stays on this machine

    bool can_read_ = true;
    bool can_write_ = true;
    bool has_hung_up_ = false;
    bool has_work_ = true;  // the queue is not known to be empty
};

}  // namespace legato
