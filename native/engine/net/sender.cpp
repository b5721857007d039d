#include "engine/net/sender.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "engine/protocol/failure.hpp"
#include "kernels/crc32c.hpp"

namespace legato {

namespace {

// A write carries several chunks, and many small parts, until it comes to this much. Measured on loopback, 64
// KiB at a time cost a tenth more of the processor; beyond 256 KiB nothing was gained.
constexpr size_t kBatchBytes = 256 * 1024;
constexpr size_t kMaxChunks = 64;
constexpr size_t kMaxVectors = 1024;  // the kernel's own limit

}  // namespace

Sender::Outcome Sender::write(int socket, size_t budget_bytes, size_t write_bytes) {
    size_t used = 0;
    if (is_torn_) throw ConnectionEnded("there was no memory for what was left to send");
    while (used < budget_bytes) {
        reconsider();
        if (next_vector_ == vectors_.size() && !compose()) return Outcome::idle;
        const ssize_t num_bytes = send(socket, write_bytes);
        if (num_bytes < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK) return Outcome::blocked;
            throw ConnectionEnded(std::strerror(errno));
        }
        used += static_cast<size_t>(num_bytes);
        advance(static_cast<size_t>(num_bytes));
        report_sent();
    }
    return Outcome::more;
}

// At most `max_bytes` of the frames that are composed; what sendmsg returned.
ssize_t Sender::send(int socket, size_t max_bytes) {
    const size_t num_vectors = std::min(vectors_.size() - next_vector_, kMaxVectors);
    msghdr message{};
    message.msg_iov = vectors_.data() + next_vector_;
    size_t num_bytes = 0;
    while (message.msg_iovlen < num_vectors && num_bytes < max_bytes)
        num_bytes += message.msg_iov[message.msg_iovlen++].iov_len;
    iovec& last = message.msg_iov[message.msg_iovlen - 1];
    const size_t num_beyond = num_bytes > max_bytes ? num_bytes - max_bytes : 0;
    last.iov_len -= num_beyond;
    // The end of a record, so that the kernel does not join writes to one large piece again.
    const int flags = MSG_NOSIGNAL | (max_bytes == SIZE_MAX ? 0 : MSG_EOR);
    const ssize_t num_sent = sendmsg(socket, &message, flags);
    last.iov_len += num_beyond;
    return num_sent;
}

void Sender::abandon() noexcept {
    std::vector<std::byte> copy;
    try {
        for (size_t i = next_vector_; i < vectors_.size(); ++i) {
            const auto* begin = static_cast<const std::byte*>(vectors_[i].iov_base);
            copy.insert(copy.end(), begin, begin + vectors_[i].iov_len);
        }
    } catch (const std::bad_alloc&) {
        copy.clear();
        is_torn_ = true;
    }
    copy_ = std::move(copy);
    vectors_.clear();
    next_vector_ = 0;
    if (!copy_.empty()) vectors_.push_back({copy_.data(), copy_.size()});  // there is room: there were some
    taken_.chunks.clear();
    next_chunk_ = 0;
}

void Sender::reconsider() {
    const size_t first = next_chunk_ + (next_chunk_ < taken_.chunks.size() && has_begun(next_chunk_));
    if (first >= taken_.chunks.size()) return;
    if (!queue_.has_more_urgent_than(taken_.chunks[first].part->urgency)) return;
    if (sealer_)
        for (size_t i = first; i < taken_.chunks.size(); ++i)
            sealer_->take_back(taken_.chunks[i].num_bytes > 0 ? 2 : 1);
    vectors_.resize(chunk_begins_[first]);
    chunk_begins_.resize(first);
    queue_.give_back(taken_.chunks, first);
}

bool Sender::compose() {
    if (!queue_.take(taken_, chunk_bytes_, kBatchBytes, kMaxChunks)) return false;
    vectors_.clear();
    next_vector_ = 0;
    chunk_begins_.clear();
    next_chunk_ = 0;
    heads_.clear();
    payload_tags_.clear();
    // Vectors point into these; and a frame whose vectors came without its payload would be cut off.
    const size_t num_frames = taken_.control.size() + taken_.chunks.size();
    heads_.reserve(num_frames);
    if (sealer_) payload_tags_.reserve(num_frames);
    if (sealer_ && sealer_->are_encrypted()) make_room_for_ciphertext();
    vectors_.reserve((sealer_ ? 3 : 2) * num_frames);
    chunk_begins_.reserve(taken_.chunks.size());
    for (const ControlFrame& frame : taken_.control) {
        if (sealer_)
            add_sealed_frame(frame.header, frame.payload.data());
        else
            add_frame(frame.header, crc32c(frame.payload.data(), frame.payload.size()), frame.payload.data());
    }
    for (const Chunk& chunk : taken_.chunks) {
        Header header = chunk.part->header;
        header.chunk_offset = chunk.offset;
        header.payload_bytes = static_cast<uint32_t>(chunk.num_bytes);
        chunk_begins_.push_back(vectors_.size());
        const std::byte* payload = chunk.part->data + chunk.offset;
        if (sealer_)
            add_sealed_frame(header, payload);
        else
            add_frame(header, chunk.part->checksum(chunk.offset, chunk.num_bytes), payload);
    }
    traffic_.frames_sent.fetch_add(taken_.control.size(), std::memory_order_relaxed);
    return true;
}

void Sender::add_frame(const Header& header, uint32_t checksum, const std::byte* payload) {
    heads_.push_back({encode(header, checksum), {}});
    add_vector(heads_.back().header.data(), head_bytes());
    if (header.payload_bytes > 0) add_vector(payload, header.payload_bytes);
}

void Sender::add_sealed_frame(const Header& header, const std::byte* payload) {
    heads_.push_back({std::bit_cast<EncodedHeader>(header), {}});
    Head& head = heads_.back();
    head.tag = sealer_->seal(head.header.data(), head.header.data(), kHeaderBytes);
    if (header.payload_bytes == 0) return add_vector(head.header.data(), head_bytes());
    std::byte* ciphertext = ciphertext_.get() + num_ciphertext_;
    payload_tags_.push_back(sealer_->seal(ciphertext, payload, header.payload_bytes));
    if (sealer_->are_encrypted()) {
        payload = ciphertext;
        num_ciphertext_ += header.payload_bytes;
    }
    add_vector(head.header.data(), head_bytes());
    add_vector(payload, header.payload_bytes);
    add_vector(payload_tags_.back().data(), kTagBytes);
}

void Sender::make_room_for_ciphertext() {
    size_t num_bytes = 0;
    for (const ControlFrame& frame : taken_.control) num_bytes += frame.payload.size();
    for (const Chunk& chunk : taken_.chunks) num_bytes += chunk.num_bytes;
    num_ciphertext_ = 0;
    if (num_bytes <= ciphertext_room_) return;
    ciphertext_room_ = 0;
    ciphertext_ = std::make_unique_for_overwrite<std::byte[]>(num_bytes);
    ciphertext_room_ = num_bytes;
}

void Sender::add_vector(const std::byte* data, size_t num_bytes) {
    vectors_.push_back({const_cast<std::byte*>(data), num_bytes});
}

void Sender::advance(size_t num_bytes) {
    num_bytes_written_ += num_bytes;
    traffic_.bytes_sent.fetch_add(num_bytes, std::memory_order_relaxed);
    while (num_bytes > 0) {
        iovec& vector = vectors_[next_vector_];
        const size_t step = std::min(num_bytes, vector.iov_len);
        vector.iov_base = static_cast<std::byte*>(vector.iov_base) + step;
        vector.iov_len -= step;
        num_bytes -= step;
        if (vector.iov_len == 0) ++next_vector_;
    }
}

// At once, not at the batch's end: the answer to a part may come while the parts behind it are still stuck.
void Sender::report_sent() {
    for (; next_chunk_ < taken_.chunks.size() && end_of(next_chunk_) <= next_vector_; ++next_chunk_) {
        traffic_.frames_sent.fetch_add(1, std::memory_order_relaxed);
        const auto finished = std::move(taken_.chunks[next_chunk_].finished);
        if (finished) finished->sent();
    }
}

bool Sender::has_begun(size_t chunk) const {
    const size_t header = chunk_begins_[chunk];
    return header < next_vector_ || vectors_[header].iov_len < head_bytes();
}

size_t Sender::end_of(size_t chunk) const {
    return chunk + 1 < chunk_begins_.size() ? chunk_begins_[chunk + 1] : vectors_.size();
}

}  // namespace legato
