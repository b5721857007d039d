// The sending half of a connection: the most urgent chunks become frames, and frames become vectored writes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/net/records.hpp"
#include "engine/net/send_queue.hpp"
#include "engine/net/traffic.hpp"

namespace legato {

class Sender {
  public:
    Sender(SendQueue& queue, size_t chunk_bytes, Traffic& traffic, std::optional<Sealer> sealer)
        : queue_(queue), chunk_bytes_(chunk_bytes), traffic_(traffic), sealer_(std::move(sealer)) {}

    enum class Outcome {
        idle,     // nothing left to send
        more,     // `budget_bytes` are used up
        blocked,  // the kernel takes no more for now
    };
    // In writes of at most `write_bytes`. Throws ConnectionEnded.
    Outcome write(int socket, size_t budget_bytes, size_t write_bytes);

    uint64_t num_bytes_written() const { return num_bytes_written_; }

    // Frames that have begun to leave must leave whole: keep a copy of what is left of them, and let go of
    // the memory they came from. Without memory for a copy the connection has to end.
    void abandon() noexcept;

  private:
    // Fill the next vectored write; false when there is nothing to send.
    bool compose();
    ssize_t send(int socket, size_t max_bytes);
    void add_frame(const Header& header, uint32_t checksum, const std::byte* payload);
    void add_sealed_frame(const Header& header, const std::byte* payload);
    void make_room_for_ciphertext();
    void add_vector(const std::byte* data, size_t num_bytes);
    // Frames that have not begun to leave make way for something more urgent.
    void reconsider();
    void advance(size_t num_bytes);
    void report_sent();
    bool has_begun(size_t chunk) const;
    size_t end_of(size_t chunk) const;
    size_t head_bytes() const { return kHeaderBytes + (sealer_ ? kTagBytes : 0); }

    SendQueue& queue_;
    const size_t chunk_bytes_;
    Traffic& traffic_;
    std::optional<Sealer> sealer_;  // none where the wire is plain

    struct Head {
        EncodedHeader header;
        Tag tag;  // sent where there is a sealer
    };
    static_assert(sizeof(Head) == kHeaderBytes + kTagBytes);

    SendQueue::Taken taken_;
    std::vector<Head> heads_;
    std::vector<Tag> payload_tags_;
    // Of the frames that are composed, where they are encrypted.
    std::unique_ptr<std::byte[]> ciphertext_;
    size_t ciphertext_room_ = 0;
    size_t num_ciphertext_ = 0;
    std::vector<iovec> vectors_;
    size_t next_vector_ = 0;
    std::vector<size_t> chunk_begins_;  // the vector of each chunk's header
    size_t next_chunk_ = 0;
    std::vector<std::byte> copy_;
    bool is_torn_ = false;
    uint64_t num_bytes_written_ = 0;
};

}  // namespace legato
