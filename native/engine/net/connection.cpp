#include "engine/net/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/net/socket.hpp"

namespace legato {

namespace {

// What one turn may move in each direction before the next link has its turn.
constexpr size_t kTurnBytes = 512 * 1024;

}  // namespace

Connection::Connection(LinkWaker& waker, int32_t peer, Descriptor socket, const Options& options,
                       FrameHandler& handler, Membership& membership, Traffic& traffic, Uplink& uplink,
                       Seals seals)
    : PeerLink(waker, peer, std::move(socket), options, membership),
      receiver_({peer, options.epoch, options.chunk_bytes}, handler, traffic, std::move(seals.opener)),
      sender_(queue(), options.chunk_bytes, traffic, std::move(seals.sealer)),
      uplink_(leaves_machine(this->socket()) ? &uplink : nullptr) {
    if (uplink_) uplink_->add(descriptor(), peer);
}

void Connection::notice(uint32_t events) {
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) has_hung_up_ = true;
    if (events & EPOLLIN || has_hung_up_) can_read_ = true;
    if (events & EPOLLOUT) can_write_ = true;
}

bool Connection::service() {
    has_work_ = true;  // woken, or not finished last time
    guarded([this] {
        if (can_read_) read();
        if (!is_closed() && can_write_) write();
    });
    return !is_closed() && (can_read_ || (can_write_ && has_work_));
}

void Connection::abandon() {
    Link::abandon();
    sender_.abandon();
    receiver_.abandon();
}

void Connection::read() {
    if (is_deaf()) return discard();
    const auto outcome = receiver_.read(descriptor(), kTurnBytes);
    // The end was reported along with the last bytes, and will not be again.
    can_read_ = outcome == Receiver::Outcome::more || has_hung_up_;
    if (outcome == Receiver::Outcome::goodbye) hear_goodbye();
}

void Connection::discard() {
    std::array<std::byte, 16384> unread;
    for (size_t used = 0; used < kTurnBytes; used += unread.size()) {
        const ssize_t num_bytes = ::recv(descriptor(), unread.data(), unread.size(), 0);
        if (num_bytes > 0 || (num_bytes < 0 && errno == EINTR)) continue;
        if (num_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            can_read_ = false;
        else
            close();
        return;
    }
}

void Connection::write() {
    const size_t write_bytes = uplink_ ? uplink_->write_bytes() : SIZE_MAX;
    auto outcome = sender_.write(descriptor(), kTurnBytes, write_bytes);
    if (uplink_) uplink_->look(outcome == Sender::Outcome::blocked);
    if (outcome == Sender::Outcome::idle && must_say_goodbye()) {
        say_goodbye();
        outcome = sender_.write(descriptor(), kTurnBytes, write_bytes);
    }
    if (outcome == Sender::Outcome::idle && has_said_goodbye()) shutdown(descriptor(), SHUT_WR);
    can_write_ = outcome != Sender::Outcome::blocked;
    has_work_ = outcome != Sender::Outcome::idle;
}

void Connection::let_go() {
    if (uplink_) uplink_->remove(descriptor());
    sender_.abandon();
}

}  // namespace legato
