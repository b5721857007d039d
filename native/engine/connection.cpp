#include "engine/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "engine/socket.hpp"

namespace legato {

namespace {

// What one turn may move in each direction before the next link has its turn.
constexpr size_t kTurnBytes = 512 * 1024;

// A tick is a fifth of the heartbeat time.
constexpr int kMaxSilentTicks = 5;

}  // namespace

Connection::Connection(LinkWaker& waker, int32_t peer, Descriptor socket, const Options& options,
                       FrameHandler& handler, Membership& membership, Traffic& traffic, Uplink& uplink)
    : Link(waker, peer),
      options_(options),
      membership_(membership),
      socket_(std::move(socket)),
      receiver_(peer, options.epoch, options.chunk_bytes, handler, traffic),
      sender_(queue(), options.chunk_bytes, traffic),
      uplink_(stays_here(socket_) ? nullptr : &uplink) {
    if (uplink_) uplink_->add(socket_.get());
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

void Connection::tick() {
    if (is_closed()) return;
    const bool is_silent = std::exchange(num_bytes_read_, receiver_.num_bytes_read()) == num_bytes_read_;
    num_silent_ticks_ = is_silent ? num_silent_ticks_ + 1 : 0;
    if (num_silent_ticks_ >= kMaxSilentTicks)
        return close_as_lost(FailureKind::peer_lost, -1, -1, "it has been silent for too long");
    const bool has_sent =
        std::exchange(num_bytes_written_, sender_.num_bytes_written()) != num_bytes_written_;
    if (has_sent || has_said_goodbye_) return;
    Header header;
    header.kind = FrameKind::heartbeat;
    header.sender = options_.member;
    header.epoch = options_.epoch;
    send(ControlFrame{header, {}});
}

void Connection::abandon() {
    Link::abandon();
    sender_.abandon();
    receiver_.abandon();
}

void Connection::leave() {
    is_leaving_ = true;
    guarded([this] { write(); });
}

template <typename Work>
void Connection::guarded(Work work) {
    try {
        work();
    } catch (const ProtocolError& error) {
        close_as_lost(error.kind, error.tensor, error.step, error.what());
    } catch (const ConnectionEnded& end) {
        if (is_leaving_)
            close();
        else
            close_as_lost(FailureKind::peer_lost, -1, -1, end.what());
    }
}

void Connection::read() {
    const auto outcome = receiver_.read(socket_.get(), kTurnBytes);
    // The end was reported along with the last bytes, and will not be again.
    can_read_ = outcome == Receiver::Outcome::more || has_hung_up_;
    if (outcome != Receiver::Outcome::goodbye) return;
    membership_.on_goodbye(peer());
    close();
}

void Connection::write() {
    const size_t write_bytes = uplink_ ? uplink_->write_bytes() : SIZE_MAX;
    auto outcome = sender_.write(socket_.get(), kTurnBytes, write_bytes);
    if (uplink_) uplink_->look(outcome == Sender::Outcome::blocked);
    if (outcome == Sender::Outcome::idle && is_leaving_ && !has_said_goodbye_) {
        say_goodbye();
        outcome = sender_.write(socket_.get(), kTurnBytes, write_bytes);
    }
    if (outcome == Sender::Outcome::idle && has_said_goodbye_) shutdown(socket_.get(), SHUT_WR);
    can_write_ = outcome != Sender::Outcome::blocked;
    has_work_ = outcome != Sender::Outcome::idle;
}

void Connection::say_goodbye() {
    has_said_goodbye_ = true;
    Header header;
    header.kind = FrameKind::goodbye;
    header.sender = options_.member;
    header.epoch = options_.epoch;
    send(ControlFrame{header, {}});
}

void Connection::close() {
    if (is_closed()) return;
    if (uplink_) uplink_->remove(socket_.get());
    socket_.reset();
    Link::abandon();
    sender_.abandon();
    membership_.on_closed();
}

void Connection::close_as_lost(FailureKind kind, int64_t tensor, int64_t step, const std::string& why) {
    close();
    membership_.on_lost({kind, peer(), tensor, step, "member " + std::to_string(peer()) + ": " + why});
}

}  // namespace legato
