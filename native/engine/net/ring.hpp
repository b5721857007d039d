// One direction of a shared link: frames in a ring of shared memory, one writer, one reader.
//
// Note: the ring.
//   control page │ header payload · header · header payload · skip ┆ header payload …        each from a
//   multiple of 64
//                  ▲ read                                                        ▲ written   bytes since the
//                  beginning
// A frame lies in one piece, so that its payload can be summed where it is; where the end is too near, a skip
// (a header of zeros) leads back to the start. Nobody waits here: who finds nothing to read, or no room,
// leaves a word in the control page, and who changes that is told to ring the other's bell. Each side sets
// its word before it looks a last time, and looks at the other's word after it has moved: one of the two
// always sees the other.
//
// The peer is believed no more than on a wire: positions are checked before they are followed, and a header
// must be copied before it is looked at.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace legato {

class Ring {
  public:
    // On memory that begins as zeros. Throws std::invalid_argument where it is too small for control frames.
    Ring(std::byte* memory, size_t num_bytes);

    // What a frame can carry at most; several of those fit.
    size_t max_payload_bytes() const;

    // ---- the writer's side ----

    // Where a frame with so much payload goes, or null while there is no room; the reader then rings.
    std::byte* reserve(size_t payload_bytes);
    void commit(size_t payload_bytes);
    // Whether the reader waits for what has been committed since this was last asked.
    bool must_wake_reader();

    // ---- the reader's side ----

    // The next frame, or null when there is none; the writer then rings. Throws ProtocolError.
    const std::byte* front();
    // The frame has been read, whose payload, a promise of the peer's, must not be longer than this.
    void check(size_t payload_bytes) const;
    void pop(size_t payload_bytes);
    // Whether the writer waits for the room that has been made since this was last asked.
    bool must_wake_writer();
    // Give the ring's pages a place near the calling thread: it reads them again and again.
    void settle() const;

  private:
    struct Control {
        alignas(64) std::atomic<uint64_t> written;
        alignas(64) std::atomic<uint64_t> read;
        alignas(64) std::atomic<uint32_t> reader_waits;
        alignas(64) std::atomic<uint32_t> writer_waits;
    };
    static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

    bool has_moved();
    bool has_room(size_t num_bytes) const;
    uint64_t num_readable() const;

    Control& control_;
    std::byte* const frames_;
    const uint64_t capacity_;
    uint64_t position_ = 0;  // the writer's or the reader's own; the shared one is never read back
    uint64_t told_ = 0;      // where it was when the other side's word was last looked at
};

}  // namespace legato
