#include "engine/net/peer_link.hpp"

#include <sstream>
#include <utility>

namespace legato {

namespace {

// A tick is a fifth of the heartbeat time.
constexpr int kMaxSilentTicks = 5;

}  // namespace

PeerLink::PeerLink(LinkWaker& waker, int32_t peer, Descriptor socket, const Options& options,
                   Membership& membership)
    : Link(waker, peer), options_(options), membership_(membership), socket_(std::move(socket)) {}

void PeerLink::tick() {
    if (is_closed()) return;
    const bool is_silent = std::exchange(last_read_, num_bytes_read()) == last_read_;
    num_silent_ticks_ = is_silent || is_deaf_ ? num_silent_ticks_ + 1 : 0;
    if (num_silent_ticks_ >= kMaxSilentTicks) return is_deaf_ ? close() : give_up_silent();
    const bool has_sent = std::exchange(last_written_, num_bytes_written()) != last_written_;
    if (has_sent || has_said_goodbye_) return;
    send(control_frame(FrameKind::heartbeat));
}

void PeerLink::leave() {
    is_leaving_ = true;
    if (is_closed()) return;
    guarded([this] { write(); });
}

void PeerLink::hear_goodbye() {
    membership_.on_goodbye(peer());
    close();
}

void PeerLink::say_goodbye() {
    has_said_goodbye_ = true;
    send(control_frame(FrameKind::goodbye));
}

void PeerLink::close() {
    if (is_closed()) return;
    Link::abandon();
    let_go();
    socket_.reset();
    membership_.on_closed();
}

ControlFrame PeerLink::control_frame(FrameKind kind) const {
    Header header;
    header.kind = kind;
    header.sender = options_.member;
    header.epoch = options_.epoch;
    return {header, {}};
}

std::string PeerLink::between() const {
    return "between member " + std::to_string(options_.member) + " and member " + std::to_string(peer());
}

std::string PeerLink::words_for(const ProtocolError& error) const {
    if (error.kind == FailureKind::corrupted)
        return "bytes changed on the link " + between() + ": " + error.what() + " reached member " +
               std::to_string(options_.member);
    return "member " + std::to_string(peer()) + ": " + error.what();
}

void PeerLink::close_as_lost(const std::string& why) {
    close();
    const std::string who = "member " + std::to_string(peer());
    membership_.on_lost({FailureKind::peer_lost, peer(), -1, -1,
                         who + ": the connection " + between() + " ended (" + why + ")"});
}

void PeerLink::give_up_silent() {
    std::ostringstream message;
    message << "member " << peer() << " has been silent towards member " << options_.member << " for "
            << options_.heartbeat_s << " s: it has stopped, or the link between them is broken";
    give_up(FailureKind::peer_lost, -1, -1, message.str());
}

void PeerLink::give_up(FailureKind kind, int64_t tensor, int64_t step, const std::string& message) {
    is_deaf_ = true;
    num_silent_ticks_ = 0;
    membership_.on_lost({kind, peer(), tensor, step, message});
    abandon();
    leave();
}

}  // namespace legato
