// What one link still has to send, most urgent first.
//
// Note: preemption at the socket. A part is not sent as a whole: each `take` looks for the most urgent part
// anew and yields its next chunk. Chunks that have been taken but whose frames have not begun to leave come
// back when something more urgent is pushed (`give_back`). With the kernel's own queue kept short
// (socket.hpp), an urgent part overtakes all that was queued before it, but for the rest of one frame and the
// few bytes already handed over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/net/outgoing.hpp"
#include "engine/protocol/frame.hpp"

namespace legato {

// A frame with no part behind it: it goes before all parts, in order.
struct ControlFrame {
    Header header;
    std::vector<std::byte> payload;
};

// The next chunk of a part. The queue owns the part until its last chunk is taken.
struct Chunk {
    const Outgoing* part;
    uint64_t offset;
    size_t num_bytes;
    std::unique_ptr<Outgoing> finished;  // the part itself, with its last chunk
};

class SendQueue {
  public:
    // Both return whether the link must be woken: its I/O thread had found the queue empty. A part is refused
    // (destroyed) after `abandon`.
    bool push(std::unique_ptr<Outgoing> part);
    bool push(ControlFrame frame);

    struct Taken {
        std::vector<ControlFrame> control;
        std::vector<Chunk> chunks;
    };
    // All control frames, and chunks of at most chunk_bytes until they come to batch_bytes or max_chunks.
    // When there is nothing, it returns false, and the next push asks for a wake-up.
    bool take(Taken& taken, size_t chunk_bytes, size_t batch_bytes, size_t max_chunks);
    // Whether a control frame or a part is waiting that should leave before this one.
    bool has_more_urgent_than(const Urgency& urgency) const;
    // Take back the chunks from index `first` on, which nothing has been sent of.
    void give_back(std::vector<Chunk>& chunks, size_t first);

    // The most urgent part as a whole, or null, with the same promise.
    std::unique_ptr<Outgoing> pop();

    // Forget all parts and refuse new ones: their memory goes back to its owners.
    void abandon();

  private:
    struct Entry {
        std::unique_ptr<Outgoing> part;
        uint64_t taken = 0;
    };

    void push_entry(std::unique_ptr<Outgoing> part, uint64_t taken);
    std::unique_ptr<Outgoing> pop_entry();

    mutable std::mutex mutex_;
    std::vector<ControlFrame> control_;
    std::vector<Entry> heap_;
    bool is_idle_ = true;
    bool is_abandoned_ = false;
};

}  // namespace legato
