// What has passed between this member and another: over connections, and on the same host through shared
// memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace legato {

struct Traffic {
    std::atomic<uint64_t> bytes_sent = 0;
    std::atomic<uint64_t> frames_sent = 0;
    std::atomic<uint64_t> bytes_received = 0;
    std::atomic<uint64_t> frames_received = 0;
    std::atomic<uint64_t> bytes_shared_sent = 0;
    std::atomic<uint64_t> bytes_shared_received = 0;
};

}  // namespace legato
