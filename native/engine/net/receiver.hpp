// The receiving half of a connection: bytes become frames.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/net/records.hpp"
#include "engine/net/traffic.hpp"
#include "engine/protocol/frame.hpp"
#include "engine/protocol/frame_handler.hpp"

namespace legato {

class Receiver {
  public:
    Receiver(const Envelope& envelope, FrameHandler& handler, Traffic& traffic, std::optional<Opener> opener);

    enum class Outcome {
        drained,  // nothing left to read for now
        more,     // `budget_bytes` are used up
        goodbye,  // the peer has nothing more to say
    };
    // Throws ProtocolError and ConnectionEnded.
    Outcome read(int socket, size_t budget_bytes);

    uint64_t num_bytes_read() const { return num_bytes_read_; }

    // What is still to come of a payload goes nowhere.
    void abandon() { target_ = staging_.get(); }

  private:
    // Less than asked for means that the socket is empty: epoll reports what comes later.
    size_t receive(int socket, iovec* vectors, size_t num_vectors, size_t num_wanted);
    // True when so many bytes lie ahead.
    bool fetch_ahead(int socket, size_t num_bytes);
    void begin_frame();
    Header open_header(std::byte* head);
    // True when the payload is complete.
    bool fetch_payload(int socket);
    // Bytes of the payload have come.
    void look_at(std::byte* data, size_t num_bytes);
    Outcome end_frame();
    void take_ahead();
    // What travels around the payload.
    size_t head_bytes() const { return kHeaderBytes + (opener_ ? kTagBytes : 0); }
    size_t tail_bytes() const { return opener_ && header_.payload_bytes > 0 ? kTagBytes : 0; }

    const Envelope envelope_;
    FrameHandler& handler_;
    Traffic& traffic_;
    std::optional<Opener> opener_;  // none where the wire is plain

    // Read ahead: one system call fetches the rest of a payload, the next header and whatever small frames
    // follow. Kept small, because what it holds of a large payload is copied once more.
    std::vector<std::byte> ahead_;
    size_t ahead_begin_ = 0;
    size_t ahead_end_ = 0;
    bool is_drained_ = false;
    uint64_t num_bytes_read_ = 0;

    // A chunk that cannot go straight to its place waits here until its checksum or tag is known. Small
    // enough to stay in the cache between the kernel's copy, the checksum and the sum. Not written before its
    // I/O thread does, so that its pages are near that thread.
    std::unique_ptr<std::byte[]> staging_;

    bool is_in_payload_ = false;
    Header header_;
    std::byte* target_ = nullptr;
    size_t received_ = 0;
    uint32_t checksum_ = 0;
};

}  // namespace legato
