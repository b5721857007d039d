// A file descriptor that closes itself, and that children of this process do not keep.
#pragma once

#include <utility>

#include "engine/forks.hpp"

namespace legato {

class Descriptor {
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {
        if (fd_ >= 0) keep_from_children(fd_);
    }
    ~Descriptor() { reset(); }
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        reset();
        fd_ = std::exchange(other.fd_, -1);
        return *this;
    }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset() {
        if (fd_ >= 0) close_here(fd_);
        fd_ = -1;
    }

  private:
    int fd_;
};

}  // namespace legato
