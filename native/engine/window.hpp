// How much one connection may have in the kernel, sent or not.
//
// Note: a short queue, end to end. What the kernel has taken cannot be overtaken, and what a connection has
// on its way beyond what its path holds only stands in queues, its own or a switch's, until they overflow: on
// 1 Gbit/s links between 4 hosts, 64 MB to 4 servers lost 24,000 segments without this bound, and an urgent
// part took 23 ms instead of 5. TCP_NOTSENT_LOWAT bounds only what is not sent yet. So the send buffer
// follows what the path holds: the rate at which it delivers times its round trip, and a little for the time
// until this thread runs again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace legato {

class Window {
  public:
    // Look at the path again and size the socket's send buffer by it; at most every few milliseconds. Only
    // TCP knows its path; other sockets stay as they are.
    void adapt(int socket);

  private:
    std::chrono::steady_clock::time_point looked_at_{};
    uint64_t num_acknowledged_ = 0;
    uint64_t busy_us_ = 0;
    double bytes_per_s_ = 0.0;
    size_t num_bytes_ = 0;
};

}  // namespace legato
