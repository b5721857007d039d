// The way out of this machine, which all its connections share: how fast it is, and what each may have on it.
//
// Note: a short queue, end to end. What the kernel has taken cannot be overtaken, and what is on its way
// beyond what the path holds only stands in queues, the sender's or a switch's, until they overflow: on 1
// Gbit/s links between 4 hosts, 64 MB to 4 servers lost 24,000 segments without a bound, and an urgent part
// took 23 ms instead of 5. TCP_NOTSENT_LOWAT bounds only what is not sent yet. So a connection's send buffer
// holds what its path holds, the rate times its round trip, and its share of a little more, for the time
// until a thread runs again. The rate is the highest of late that all connections reached together. Each
// one's own would not do: one that is behind would get a smaller buffer, and fall further behind. The numbers
// are in docs/decisions/007.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace legato {

class Uplink {
  public:
    // What has gone to a peer on one connection: bytes that it has acknowledged, and for how long some were
    // on their way, but for the time in which it had no room for them.
    struct Flow {
        int32_t peer;
        uint64_t num_acknowledged;
        uint64_t busy_us;
    };

    // A TCP socket that leaves this machine, until `remove`, which comes before it is closed.
    void add(int socket, int32_t peer);
    void remove(int socket);

    // After a write: look at all sockets again if it is time, and size their send buffers. `is_held_up`: the
    // network, not a lack of work, has ended the write.
    void look(bool is_held_up);

    std::vector<Flow> flows() const;

    // What one write should carry at most. The kernel frees a write's memory as a whole, when all of it has
    // been acknowledged: with the send buffer in one or two large pieces, the next is written too late.
    size_t write_bytes() const { return write_bytes_; }

  private:
    struct Member {
        int socket;
        int32_t peer;
        uint64_t num_acknowledged;
        size_t buffer_bytes;
    };

    void measure(std::chrono::steady_clock::time_point now);
    void take_sample(double bytes_per_s);
    void resize(Member& member, double round_trip_s);

    mutable std::mutex mutex_;
    std::vector<Member> members_;
    std::chrono::steady_clock::time_point looked_at_ = std::chrono::steady_clock::now();
    bool is_held_up_ = false;
    // The highest rate of this series of samples and of the one before, so that an old one is forgotten.
    std::array<double, 2> highest_{};
    size_t num_samples_ = 0;
    std::atomic<size_t> write_bytes_ = 0;
};

}  // namespace legato
