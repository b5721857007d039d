#include "engine/net/ring.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "engine/net/shared_memory.hpp"
#include "engine/protocol/failure.hpp"
#include "engine/protocol/frame.hpp"

namespace legato {

namespace {

constexpr size_t kControlBytes = 4096;
constexpr size_t kGrain = 64;
// At least two: a frame may have to skip nearly its own length. More let writer and reader work at once.
constexpr size_t kNumFrames = 4;
static_assert(kHeaderBytes == kGrain);

uint64_t frame_bytes(size_t payload_bytes) {
    return kHeaderBytes + (payload_bytes + kGrain - 1) / kGrain * kGrain;
}

uint64_t capacity_of(size_t num_bytes) {
    return num_bytes < kControlBytes ? 0 : (num_bytes - kControlBytes) / kGrain * kGrain;
}

bool take(std::atomic<uint32_t>& word) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return word.load(std::memory_order_relaxed) != 0 && word.exchange(0) != 0;
}

void leave(std::atomic<uint32_t>& word) {
    word.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace

Ring::Ring(std::byte* memory, size_t num_bytes)
    : control_(*reinterpret_cast<Control*>(memory)),
      frames_(memory + kControlBytes),
      capacity_(capacity_of(num_bytes)) {
    static_assert(sizeof(Control) <= kControlBytes);
    if (max_payload_bytes() < kMaxControlBytes)
        throw std::invalid_argument("shared memory has no room for frames in both directions");
}

size_t Ring::max_payload_bytes() const {
    const uint64_t share = capacity_ / kNumFrames / kGrain * kGrain;
    return share < kHeaderBytes ? 0 : share - kHeaderBytes;
}

std::byte* Ring::reserve(size_t payload_bytes) {
    const uint64_t num_bytes = frame_bytes(payload_bytes);
    const uint64_t to_end = capacity_ - position_ % capacity_;
    const uint64_t skipped = to_end < num_bytes ? to_end : 0;
    if (!has_room(skipped + num_bytes)) {
        leave(control_.writer_waits);
        if (!has_room(skipped + num_bytes)) return nullptr;
        control_.writer_waits.store(0, std::memory_order_relaxed);
    }
    if (skipped > 0) std::memset(frames_ + position_ % capacity_, 0, kHeaderBytes);
    position_ += skipped;
    return frames_ + position_ % capacity_;
}

void Ring::commit(size_t payload_bytes) {
    position_ += frame_bytes(payload_bytes);
    control_.written.store(position_, std::memory_order_release);
}

bool Ring::must_wake_reader() { return has_moved() && take(control_.reader_waits); }

const std::byte* Ring::front() {
    while (true) {
        if (num_readable() == 0) {
            leave(control_.reader_waits);
            if (num_readable() == 0) return nullptr;
            control_.reader_waits.store(0, std::memory_order_relaxed);
        }
        const std::byte* frame = frames_ + position_ % capacity_;
        uint32_t magic;
        std::memcpy(&magic, frame, sizeof magic);
        if (magic != 0) return frame;
        const uint64_t to_end = capacity_ - position_ % capacity_;
        if (to_end > num_readable()) throw ProtocolError("shared memory that leads nowhere");
        position_ += to_end;
        control_.read.store(position_, std::memory_order_release);
    }
}

void Ring::check(size_t payload_bytes) const {
    if (frame_bytes(payload_bytes) > std::min(num_readable(), capacity_ - position_ % capacity_))
        throw ProtocolError("a frame in shared memory that is longer than what was written");
}

void Ring::pop(size_t payload_bytes) {
    position_ += frame_bytes(payload_bytes);
    control_.read.store(position_, std::memory_order_release);
}

bool Ring::must_wake_writer() { return has_moved() && take(control_.writer_waits); }

void Ring::settle() const { settle_near_here(frames_, capacity_); }

// Nobody is woken for nothing: two sides that wait for each other would ring each other's bells forever.
bool Ring::has_moved() { return std::exchange(told_, position_) != position_; }

bool Ring::has_room(size_t num_bytes) const {
    return position_ - control_.read.load(std::memory_order_acquire) + num_bytes <= capacity_;
}

uint64_t Ring::num_readable() const {
    const uint64_t num_bytes = control_.written.load(std::memory_order_acquire) - position_;
    if (num_bytes > capacity_ || num_bytes % kGrain != 0)
        throw ProtocolError("shared memory that is out of order");
    return num_bytes;
}

}  // namespace legato
