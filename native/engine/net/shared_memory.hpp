// Memory that two processes on one host map. It has no name: it is a descriptor that one hands to the other.
#pragma once

#include <cstddef>

#include "engine/net/descriptor.hpp"

namespace legato {

class SharedMemory {
  public:
    static constexpr size_t kMaxBytes = 64 << 20;

    // The whole of a memfd, which need not stay open. Throws std::system_error, and std::invalid_argument for
    // a file that could still shrink, since touching what is gone would kill this process, or one that is too
    // large: a peer chose its size.
    explicit SharedMemory(const Descriptor& file);
    ~SharedMemory();
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&&) = delete;

    std::byte* data() const { return data_; }
    size_t num_bytes() const { return num_bytes_; }

  private:
    std::byte* data_ = nullptr;
    size_t num_bytes_ = 0;
};

// Give these pages a place near the calling thread, unless somebody else has touched them first.
void settle_near_here(std::byte* data, size_t num_bytes);

}  // namespace legato
