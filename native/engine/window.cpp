#include "engine/window.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace legato {

namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 5ms;
constexpr double kLeastBusy_us = 2000.0;
// Until an I/O thread that shares its core runs again.
constexpr double kSlack_s = 1.5e-3;
// Below this the path is drained by every late wake-up; above, no path of a data centre is longer.
constexpr double kLeastBytes = 16.0 * 1024;
constexpr double kMostBytes = 32.0 * 1024 * 1024;

}  // namespace

void Window::adapt(int socket) {
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_at_ < kLookEvery) return;
    looked_at_ = now;
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
    const auto busy_us = static_cast<double>(info.tcpi_busy_time - busy_us_);
    if (busy_us < kLeastBusy_us) return;
    const auto num_bytes = static_cast<double>(info.tcpi_bytes_acked - num_acknowledged_);
    num_acknowledged_ = info.tcpi_bytes_acked;
    busy_us_ = info.tcpi_busy_time;
    const double sample = num_bytes / (1e-6 * busy_us);
    bytes_per_s_ = bytes_per_s_ == 0.0 ? sample : (3.0 * bytes_per_s_ + sample) / 4.0;
    const double round_trip_s = 1e-6 * info.tcpi_min_rtt;
    const auto wanted = static_cast<size_t>(
        std::clamp(bytes_per_s_ * (2.0 * round_trip_s + kSlack_s), kLeastBytes, kMostBytes));
    if (wanted > num_bytes_ * 3 / 4 && wanted < num_bytes_ * 5 / 4) return;
    num_bytes_ = wanted;
    const int half = static_cast<int>(wanted / 2);  // the kernel doubles it, for its own bookkeeping
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
}

}  // namespace legato
