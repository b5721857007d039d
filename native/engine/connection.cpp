#include "engine/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

namespace legato {

namespace {

// What one turn may move in each direction before the next link has its turn.
constexpr size_t kTurnBytes = 512 * 1024;

}  // namespace

Connection::Connection(LinkWaker& waker, int32_t peer, Descriptor socket, const Options& options,
                       FrameHandler& handler, Membership& membership, Traffic& traffic)
    : PeerLink(waker, peer, std::move(socket), options, membership),
      receiver_({peer, options.epoch, options.chunk_bytes}, handler, traffic),
      sender_(queue(), options.chunk_bytes, traffic) {}

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
    const auto outcome = receiver_.read(descriptor(), kTurnBytes);
    // The end was reported along with the last bytes, and will not be again.
    can_read_ = outcome == Receiver::Outcome::more || has_hung_up_;
    if (outcome == Receiver::Outcome::goodbye) hear_goodbye();
}

void Connection::write() {
    window_.adapt(descriptor());
    auto outcome = sender_.write(descriptor(), kTurnBytes);
    if (outcome == Sender::Outcome::idle && must_say_goodbye()) {
        say_goodbye();
        outcome = sender_.write(descriptor(), kTurnBytes);
    }
    if (outcome == Sender::Outcome::idle && has_said_goodbye()) shutdown(descriptor(), SHUT_WR);
    can_write_ = outcome != Sender::Outcome::blocked;
    has_work_ = outcome != Sender::Outcome::idle;
}

}  // namespace legato
