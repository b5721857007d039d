#include "engine/net/shared_link.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace legato {

namespace {

// What one turn may move in each direction before the next link has its turn: less where that may be a
// socket, which soon runs dry.
constexpr size_t kTurnBytes = 256 * 1024;
constexpr size_t kShortTurnBytes = 64 * 1024;

Ring half_of(const SharedMemory& memory, bool is_second) {
    const size_t half = memory.num_bytes() / 2;
    return {memory.data() + (is_second ? half : 0), half};
}

}  // namespace

SharedLink::SharedLink(LinkWaker& waker, int32_t peer, Descriptor bell, SharedMemory memory,
                       const Options& options, FrameHandler& handler, Membership& membership,
                       Traffic& traffic)
    : PeerLink(waker, peer, std::move(bell), options, membership),
      envelope_{peer, options.epoch, options.chunk_bytes},
      handler_(handler),
      traffic_(traffic),
      memory_(std::move(memory)),
      incoming_(half_of(*memory_, peer > options.member)),
      outgoing_(half_of(*memory_, peer < options.member)),
      turn_bytes_(options.num_hosts > 1 ? kShortTurnBytes : kTurnBytes),
      chunk_bytes_(std::min(options.chunk_bytes, outgoing_.max_payload_bytes())) {}

void SharedLink::notice(uint32_t events) {
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) has_hung_up_ = true;
    std::array<std::byte, 256> strokes;
    static_cast<void>(::recv(descriptor(), strokes.data(), strokes.size(), MSG_DONTWAIT));
}

bool SharedLink::service() {
    // By the thread that will sum from it. The writer may have come first, then nothing is lost but nearness.
    if (!std::exchange(is_settled_, true)) incoming_.settle();
    guarded([this] {
        read();
        if (!is_closed() && !has_hung_up_) write();
        // What it wrote before it went has been read.
        if (!is_closed() && has_hung_up_ && !can_read_) throw ConnectionEnded("it closed the connection");
    });
    return !is_closed() && (can_read_ || can_write_);
}

void SharedLink::abandon() {
    Link::abandon();
    taken_.chunks.clear();
}

void SharedLink::read() {
    can_read_ = !is_deaf();
    const uint64_t until = num_bytes_read_ + turn_bytes_;
    while (can_read_ && num_bytes_read_ < until) {
        can_read_ = read_frame();
        if (is_closed()) return;
    }
    if (incoming_.must_wake_writer()) ring_bell();
}

bool SharedLink::read_frame() {
    const std::byte* frame = incoming_.front();
    if (frame == nullptr) return false;
    const Header header = decode_bare(frame);
    envelope_.check(header);
    incoming_.check(header.payload_bytes);
    const std::byte* payload = frame + kHeaderBytes;
    if (std::byte* target = handler_.accept(header)) {
        std::memcpy(target, payload, header.payload_bytes);
        payload = target;
    }
    num_bytes_read_ += kHeaderBytes + header.payload_bytes;
    traffic_.bytes_shared_received.fetch_add(kHeaderBytes + header.payload_bytes, std::memory_order_relaxed);
    if (header.kind == FrameKind::goodbye) {
        hear_goodbye();
        return false;
    }
    handler_.deliver(header, payload);
    incoming_.pop(header.payload_bytes);
    return true;
}

void SharedLink::write() {
    can_write_ = true;
    const uint64_t until = num_bytes_written_ + turn_bytes_;
    while (can_write_ && num_bytes_written_ < until) can_write_ = write_frame();
    if (outgoing_.must_wake_reader()) ring_bell();
}

bool SharedLink::write_frame() {
    if (next_control_ == taken_.control.size() && taken_.chunks.empty()) {
        next_control_ = 0;
        if (!queue().take(taken_, chunk_bytes_, 1, 1)) {
            if (!must_say_goodbye()) return false;
            say_goodbye();
            return true;
        }
    }
    if (next_control_ == taken_.control.size()) return put_next_chunk();
    const ControlFrame& frame = taken_.control[next_control_];
    if (!put(frame.header, frame.payload.data())) return false;
    ++next_control_;
    return true;
}

bool SharedLink::put_next_chunk() {
    Chunk& chunk = taken_.chunks.front();
    Header header = chunk.part->header;
    header.chunk_offset = chunk.offset;
    header.payload_bytes = static_cast<uint32_t>(chunk.num_bytes);
    if (!put(header, chunk.part->data + chunk.offset)) return false;
    const auto finished = std::move(chunk.finished);
    taken_.chunks.clear();
    if (finished) finished->sent();
    return true;
}

bool SharedLink::put(const Header& header, const std::byte* payload) {
    std::byte* frame = outgoing_.reserve(header.payload_bytes);
    if (frame == nullptr) return false;
    std::memcpy(frame, &header, kHeaderBytes);
    if (header.payload_bytes > 0) std::memcpy(frame + kHeaderBytes, payload, header.payload_bytes);
    outgoing_.commit(header.payload_bytes);
    num_bytes_written_ += kHeaderBytes + header.payload_bytes;
    traffic_.bytes_shared_sent.fetch_add(kHeaderBytes + header.payload_bytes, std::memory_order_relaxed);
    return true;
}

void SharedLink::ring_bell() {
    // A full socket has strokes enough; a closed one is noticed where it is read.
    static_cast<void>(::send(descriptor(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

void SharedLink::let_go() {
    taken_.chunks.clear();
    memory_.reset();
}

}  // namespace legato
