// What becomes of engines when their process forks.
//
// Note: forks. A child has copies of its parent's memory and descriptors, and none of its threads. A lock
// that one of them held stays locked for ever, and a socket that the child keeps open hides the parent's
// death from the peers. So a child closes every descriptor of ours as it begins; it leaves engines and tasks
// as they are, without destroying them; and to whoever uses one it says whose they are. It may have engines
// of its own.
#pragma once

#include <cstdint>

namespace legato {

// Of descriptors that children shall not keep. Throws std::bad_alloc, and then has closed it.
void keep_from_children(int fd);
void close_here(int fd) noexcept;

// The process in which something is made.
class Maker {
  public:
    Maker();
    bool is_this_process() const noexcept;

  private:
    const uint64_t generation_;
};

inline constexpr const char* kInherited =
    "the engine belongs to the process that made it, and this is a child of it";

// Destroys what it has been given only in the process that made it.
struct LeaveToMaker {
    Maker maker;

    template <typename T>
    void operator()(T* made) const {
        if (maker.is_this_process()) delete made;
    }
};

}  // namespace legato
