#include "engine/net/receiver.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/protocol/failure.hpp"
#include "kernels/crc32c.hpp"

namespace legato {

namespace {

constexpr size_t kAheadBytes = 4096;

}  // namespace

Receiver::Receiver(const Envelope& envelope, FrameHandler& handler, Traffic& traffic)
    : envelope_(envelope),
      handler_(handler),
      traffic_(traffic),
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
            if (!fetch_header(socket)) return Outcome::drained;
            begin_frame();
        }
        if (!fetch_payload(socket)) return Outcome::drained;
        if (end_frame() == Outcome::goodbye) return Outcome::goodbye;
    }
    return Outcome::more;
}

bool Receiver::fetch_header(int socket) {
    while (ahead_end_ - ahead_begin_ < kHeaderBytes) {
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
    header_ = decode(ahead_.data() + ahead_begin_);
    ahead_begin_ += kHeaderBytes;
    envelope_.check(header_);
    target_ = staging_.get();
    received_ = 0;
    checksum_ = 0;
    is_in_payload_ = true;  // whatever `accept` throws, what follows is read as the payload that it is
    if (std::byte* target = handler_.accept(header_)) target_ = target;
}

bool Receiver::fetch_payload(int socket) {
    take_ahead();
    while (received_ < header_.payload_bytes) {
        if (is_drained_) return false;
        const size_t wanted = header_.payload_bytes - received_;
        std::array<iovec, 2> vectors{iovec{target_ + received_, wanted}, iovec{ahead_.data(), ahead_.size()}};
        const size_t num_bytes = receive(socket, vectors.data(), vectors.size(), wanted + ahead_.size());
        const size_t of_payload = std::min(num_bytes, wanted);
        checksum_ = crc32c(target_ + received_, of_payload, checksum_);
        received_ += of_payload;
        ahead_begin_ = 0;
        ahead_end_ = num_bytes - of_payload;
    }
    return true;
}

Receiver::Outcome Receiver::end_frame() {
    is_in_payload_ = false;
    check_checksum(header_, checksum_);
    traffic_.frames_received.fetch_add(1, std::memory_order_relaxed);
    traffic_.bytes_received.fetch_add(kHeaderBytes + header_.payload_bytes, std::memory_order_relaxed);
    if (header_.kind == FrameKind::goodbye) return Outcome::goodbye;
    handler_.deliver(header_, target_);
    return Outcome::more;
}

void Receiver::take_ahead() {
    const size_t num_bytes = std::min<size_t>(header_.payload_bytes - received_, ahead_end_ - ahead_begin_);
    if (num_bytes == 0) return;
    std::memcpy(target_ + received_, ahead_.data() + ahead_begin_, num_bytes);
    checksum_ = crc32c(target_ + received_, num_bytes, checksum_);
    received_ += num_bytes;
    ahead_begin_ += num_bytes;
}

}  // namespace legato
