// A tensor that passes through the host's memory piece by piece, because an accelerator copies it there and
// back.
//
// Note: the way through the host. Nobody waits on the host, and a piece moves as soon as it can:
//
//     device      copy of a piece ─┐ a host function           ┌─► a stream waits for the word and copies
//                                  ▼                           │
//     watermark         raise: parts below it may start        │
//                                  │                           │
//     engine                       └─► sent ─► answered ─► finish: all of a piece is here, its word is set
//
// A word never goes back: it is set to the mark of a step, and marks grow from step to step. Whoever waits
// for a word waits for a task, and every task ends: one that fails sets the words that are left. What these
// pieces hold then is no average, and kernels that would use it are queued already, so it becomes NaN (all
// bits set, in every floating-point format): weights are then plainly lost, not silently wrong. A piece is
// not touched before its copy to the host is over, or that copy would undo it.
//
// No method waits, or calls anybody: they are for the driver's threads and the I/O threads, while others
// hold the interpreter's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace legato {

class Pieces {
  public:
    // One word for each piece; they outlive this.
    Pieces(uint64_t piece_bytes, uint32_t* words);

    // A step begins in this memory: nothing of it is ready, nothing has arrived.
    void begin(uint32_t mark, std::byte* memory, uint64_t num_bytes);
    // The first bytes have been copied to the host, so many of them.
    void raise(uint64_t ready_bytes);
    uint64_t ready_bytes() const { return ready_bytes_; }
    bool is_ready() const { return ready_bytes_ == num_bytes_; }
    // The average of these bytes is in memory, each of them once.
    void arrive(uint64_t offset, uint64_t length);
    // All of it has arrived.
    void complete();
    // The rest will not: what is ready now or later is spoiled, and its words are set.
    void give_up();

  private:
    // These with the lock held.
    uint64_t end_of(size_t piece) const;
    void set(size_t piece);
    void spoil();

    const uint64_t piece_bytes_;
    uint32_t* const words_;
    std::atomic<uint64_t> num_bytes_ = 0;
    std::atomic<uint64_t> ready_bytes_ = 0;

    std::mutex mutex_;
    uint32_t mark_ = 0;
    std::byte* memory_ = nullptr;
    bool is_given_up_ = false;
    std::vector<uint64_t> missing_;  // bytes of each piece; its word is set when there are none
};

}  // namespace legato
