#include "engine/net/uplink.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace legato {

namespace {

using namespace std::chrono_literals;

constexpr auto kPeriod = 25ms;
constexpr size_t kSeries = 40;
// Until an I/O thread that shares its core runs again.
constexpr double kSlack_s = 1.5e-3;
// Until a rate is known: little enough not to lose anything, enough for the rate to grow from there.
constexpr size_t kFirstBytes = 64 * 1024;
// Below this a connection is drained by every late wake-up; above, no path of a data centre is longer.
constexpr double kLeastBytes = 16.0 * 1024;
constexpr double kMostBytes = 32.0 * 1024 * 1024;

void set_send_buffer(int socket, size_t num_bytes) {
    const int half = static_cast<int>(num_bytes / 2);  // the kernel doubles it, for its own bookkeeping
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
}

tcp_info info_of(int socket) {
    tcp_info info{};
    socklen_t length = sizeof info;
    getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length);
    return info;
}

}  // namespace

void Uplink::add(int socket, int32_t peer) {
    const std::lock_guard lock(mutex_);
    members_.push_back({socket, peer, 0, kFirstBytes});
    set_send_buffer(socket, kFirstBytes);
    if (write_bytes_ == 0) write_bytes_ = kFirstBytes / 2;
}

void Uplink::remove(int socket) {
    const std::lock_guard lock(mutex_);
    std::erase_if(members_, [socket](const Member& member) { return member.socket == socket; });
}

std::vector<Uplink::Flow> Uplink::flows() const {
    const std::lock_guard lock(mutex_);
    std::vector<Flow> flows;
    for (const Member& member : members_) {
        const tcp_info info = info_of(member.socket);
        const uint64_t no_room_us = std::min(info.tcpi_rwnd_limited, info.tcpi_busy_time);
        flows.push_back({member.peer, info.tcpi_bytes_acked, info.tcpi_busy_time - no_room_us});
    }
    return flows;
}

void Uplink::look(bool is_held_up) {
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    is_held_up_ = is_held_up_ || is_held_up;
    if (now - looked_at_ >= kPeriod) measure(now);
}

void Uplink::measure(std::chrono::steady_clock::time_point now) {
    std::vector<double> round_trips_s;
    uint64_t num_acknowledged = 0;
    for (Member& member : members_) {
        const tcp_info info = info_of(member.socket);
        num_acknowledged +=
            info.tcpi_bytes_acked - std::exchange(member.num_acknowledged, info.tcpi_bytes_acked);
        round_trips_s.push_back(1e-6 * info.tcpi_min_rtt);
    }
    const double elapsed_s = std::chrono::duration<double>(now - std::exchange(looked_at_, now)).count();
    // What was sent for want of more to send says nothing of the path.
    if (!std::exchange(is_held_up_, false)) return;
    take_sample(static_cast<double>(num_acknowledged) / elapsed_s);
    for (size_t i = 0; i < members_.size(); ++i) resize(members_[i], round_trips_s[i]);
}

void Uplink::take_sample(double bytes_per_s) {
    if (++num_samples_ % kSeries == 0) highest_ = {highest_[1], 0.0};
    highest_[1] = std::max(highest_[1], bytes_per_s);
}

void Uplink::resize(Member& member, double round_trip_s) {
    const double share_s = round_trip_s + kSlack_s / static_cast<double>(members_.size());
    const double wanted = std::max(highest_[0], highest_[1]) * share_s;
    const auto num_bytes = static_cast<size_t>(std::clamp(wanted, kLeastBytes, kMostBytes));
    write_bytes_ = num_bytes / 2;
    if (num_bytes > member.buffer_bytes * 7 / 8 && num_bytes < member.buffer_bytes * 9 / 8) return;
    member.buffer_bytes = num_bytes;
    set_send_buffer(member.socket, num_bytes);
}

}  // namespace legato
