#include "engine/net/receiver.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/protocol/failure.hpp"
#include "kernels/crc32c.hpp"

namespace legato {

namespace {

constexpr size_t kAheadBytes = 4096;

}  // namespace

Receiver::Receiver(const Envelope& envelope, FrameHandler& handler, Traffic& traffic,
                   std::optional<Opener> opener)
    : envelope_(envelope),
      handler_(handler),
      traffic_(traffic),
      opener_(std::move(opener)),
      ahead_(kAheadBytes),
      staging_(std::make_unique_for_overwrite<std::byte[]>(
          std::max<size_t>(envelope.chunk_bytes, kMaxControlBytes))) {}

size_t Receiver::receive(int socket, iovec* vectors, size_t num_vectors, size_t num_wanted) {
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = num_vectors;
    ssize_t num_bytes;
    do {
        num_bytes = recvmsg(socket, &message, 0);
    } while (num_bytes < 0 && errno == EINTR);
    if (num_bytes == 0) throw ConnectionEnded("it closed the connection");
    if (num_bytes < 0 && errno != EAGAIN && errno != EWOULDBLOCK) throw ConnectionEnded(std::strerror(errno));
    const size_t num_read = num_bytes < 0 ? 0 : static_cast<size_t>(num_bytes);
    is_drained_ = num_read < num_wanted;
    num_bytes_read_ += num_read;
    return num_read;
}

Receiver::Outcome Receiver::read(int socket, size_t budget_bytes) {
    is_drained_ = false;
    for (size_t used = 0; used < budget_bytes; used += kHeaderBytes + header_.payload_bytes) {
        if (!is_in_payload_) {
            if (!fetch_ahead(socket, head_bytes())) return Outcome::drained;
            begin_frame();
        }
        if (!fetch_payload(socket) || !fetch_ahead(socket, tail_bytes())) return Outcome::drained;
        if (end_frame() == Outcome::goodbye) return Outcome::goodbye;
    }
    return Outcome::more;
}

bool Receiver::fetch_ahead(int socket, size_t num_bytes) {
    while (ahead_end_ - ahead_begin_ < num_bytes) {
        if (is_drained_) return false;
        std::copy(ahead_.begin() + static_cast<std::ptrdiff_t>(ahead_begin_),
                  ahead_.begin() + static_cast<std::ptrdiff_t>(ahead_end_), ahead_.begin());
        ahead_end_ -= ahead_begin_;
        ahead_begin_ = 0;
        iovec vector{ahead_.data() + ahead_end_, ahead_.size() - ahead_end_};
        ahead_end_ += receive(socket, &vector, 1, vector.iov_len);
    }
    return true;
}

void Receiver::begin_frame() {
    std::byte* head = ahead_.data() + ahead_begin_;
    header_ = opener_ ? open_header(head) : decode(head);
    ahead_begin_ += head_bytes();
    envelope_.check(header_);
    target_ = staging_.get();
    received_ = 0;
    checksum_ = 0;
    is_in_payload_ = true;  // whatever `accept` throws, what follows is read as the payload that it is
    if (opener_ && header_.payload_bytes > 0) opener_->begin();
    if (std::byte* target = handler_.accept(header_)) target_ = target;
}

Header Receiver::open_header(std::byte* head) {
    opener_->begin();
    opener_->open(head, kHeaderBytes);
    if (!opener_->is_genuine(head + kHeaderBytes))
        throw ProtocolError("a header with a wrong tag", -1, -1, FailureKind::corrupted);
    return decode_bare(head);
}

bool Receiver::fetch_payload(int socket) {
    take_ahead();
    while (received_ < header_.payload_bytes) {
        if (is_drained_) return false;
        const size_t wanted = header_.payload_bytes - received_;
        std::array<iovec, 2> vectors{iovec{target_ + received_, wanted}, iovec{ahead_.data(), ahead_.size()}};
        const size_t num_bytes = receive(socket, vectors.data(), vectors.size(), wanted + ahead_.size());
        const size_t of_payload = std::min(num_bytes, wanted);
        look_at(target_ + received_, of_payload);
        received_ += of_payload;
        ahead_begin_ = 0;
        ahead_end_ = num_bytes - of_payload;
    }
    return true;
}

void Receiver::look_at(std::byte* data, size_t num_bytes) {
    if (opener_)
        opener_->open(data, num_bytes);
    else
        checksum_ = crc32c(data, num_bytes, checksum_);
}

Receiver::Outcome Receiver::end_frame() {
    is_in_payload_ = false;
    if (!opener_) {
        check_checksum(header_, checksum_);
    } else if (header_.payload_bytes > 0 && !opener_->is_genuine(ahead_.data() + ahead_begin_)) {
        throw ProtocolError("a payload with a wrong tag", header_.tensor, header_.step,
                            FailureKind::corrupted);
    }
    ahead_begin_ += tail_bytes();
    traffic_.frames_received.fetch_add(1, std::memory_order_relaxed);
    traffic_.bytes_received.fetch_add(head_bytes() + header_.payload_bytes + tail_bytes(),
                                      std::memory_order_relaxed);
    if (header_.kind == FrameKind::goodbye) return Outcome::goodbye;
    handler_.deliver(header_, target_);
    return Outcome::more;
}

void Receiver::take_ahead() {
    const size_t num_bytes = std::min<size_t>(header_.payload_bytes - received_, ahead_end_ - ahead_begin_);
    if (num_bytes == 0) return;
    std::memcpy(target_ + received_, ahead_.data() + ahead_begin_, num_bytes);
    look_at(target_ + received_, num_bytes);
    received_ += num_bytes;
    ahead_begin_ += num_bytes;
}

}  // namespace legato
