// What has gone through an engine's connections, and what to members on the same host through shared memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace legato {

struct Traffic {
    std::atomic<uint64_t> bytes_sent = 0;
    std::atomic<uint64_t> frames_sent = 0;
    std::atomic<uint64_t> bytes_received = 0;
    std::atomic<uint64_t> frames_received = 0;
    std::atomic<uint64_t> bytes_shared = 0;  // both ways
};

}  // namespace legato
