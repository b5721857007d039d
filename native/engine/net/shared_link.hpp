// The way to a member on the same host: frames through shared memory, a ring for each direction, and a socket
// that is the bell of both.
//
// A contribution is summed where it lies in the ring, so it is copied once on its way; a sum is copied in and
// out. Nothing is checksummed: memory that changed bits by itself would spoil the sums all the same. When a
// process dies the kernel closes its end of the socket, which the other end sees at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/net/peer_link.hpp"
#include "engine/net/ring.hpp"
#include "engine/net/send_queue.hpp"
#include "engine/net/shared_memory.hpp"
#include "engine/net/traffic.hpp"
#include "engine/protocol/frame_handler.hpp"

namespace legato {

class SharedLink final : public PeerLink {
  public:
    // Takes over a connected socket and the memory both ends map; its first half is the ring from the lower
    // member to the higher. Throws std::invalid_argument for memory that is too small.
    SharedLink(LinkWaker& waker, int32_t peer, Descriptor bell, SharedMemory memory, const Options& options,
               FrameHandler& handler, Membership& membership, Traffic& traffic);

    bool is_neighbour() const override { return true; }
    // What the bell sends is never much: that it could send more tells nothing.
    uint32_t events() const override { return EPOLLIN | EPOLLRDHUP; }
    void notice(uint32_t events) override;
    bool service() override;
    void abandon() override;

  private:
    // Both as far as one turn goes.
    void read();
    void write() override;
    // One frame; false when there is none, or no room.
    bool read_frame();
    bool write_frame();
    bool put(const Header& header, const std::byte* payload);
    bool put_next_chunk();
    void ring_bell();
    uint64_t num_bytes_read() const override { return num_bytes_read_; }
    uint64_t num_bytes_written() const override { return num_bytes_written_; }
    void let_go() override;

    const Envelope envelope_;
    FrameHandler& handler_;
    Traffic& traffic_;
    std::optional<SharedMemory> memory_;  // none once closed
    Ring incoming_;
    Ring outgoing_;
    const size_t turn_bytes_;
    const size_t chunk_bytes_;  // as agreed, or what the ring has room for

    SendQueue::Taken taken_;
    size_t next_control_ = 0;
    bool is_settled_ = false;
    bool has_hung_up_ = false;
    bool can_read_ = true;
    bool can_write_ = true;
    uint64_t num_bytes_read_ = 0;
    uint64_t num_bytes_written_ = 0;
};

}  // namespace legato
