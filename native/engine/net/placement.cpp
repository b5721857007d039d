#include "engine/net/placement.hpp"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace legato {

namespace {

constexpr int kNiceness = -5;
constexpr uint64_t kSlice_ns = 100'000;  // the shortest there is

// As the kernel knows them; glibc does from 2.41 on.
struct Scheduling {
    uint32_t num_bytes;
    uint32_t policy;
    uint64_t flags;
    int32_t niceness;
    uint32_t priority;
    uint64_t slice_ns;
    uint64_t deadline_ns;
    uint64_t period_ns;
};

bool is_same_address(const sockaddr_storage& a, const sockaddr* b) {
    if (b == nullptr || a.ss_family != b->sa_family) return false;
    if (a.ss_family == AF_INET)
        return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
               reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
    return a.ss_family == AF_INET6 &&
           std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

// The name of the interface that has the socket's address, or empty.
std::string interface_of(int socket) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    ifaddrs* all = nullptr;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 || getifaddrs(&all) != 0)
        return {};
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next)
        if (is_same_address(address, one->ifa_addr)) return one->ifa_name;
    return {};
}

// "0-3,8-11"
cpu_set_t parse_cpus(const std::string& list) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    std::istringstream ranges(list);
    for (std::string range; std::getline(ranges, range, ',');) {
        const size_t dash = range.find('-');
        const int first = std::stoi(range);
        const int last = dash == std::string::npos ? first : std::stoi(range.substr(dash + 1));
        for (int cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, &cpus);
    }
    return cpus;
}

}  // namespace

void take_precedence() {
    // Not allowed to everybody, and then no harm is done.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
}

bool take_short_slices() {
    Scheduling scheduling{};
    if (syscall(SYS_sched_getattr, 0, &scheduling, sizeof scheduling, 0) != 0) return false;
    scheduling.slice_ns = kSlice_ns;
    syscall(SYS_sched_setattr, 0, &scheduling, 0);
    syscall(SYS_sched_getattr, 0, &scheduling, sizeof scheduling, 0);
    return scheduling.slice_ns == kSlice_ns;  // an older kernel has taken no notice
}

void stay_near_network(int socket) {
    if (access("/sys/devices/system/node/node1", F_OK) != 0) return;
    int node = -1;
    std::ifstream("/sys/class/net/" + interface_of(socket) + "/device/numa_node") >> node;
    std::string cpus;
    std::ifstream("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist") >> cpus;
    if (cpus.empty()) return;
    const cpu_set_t set = parse_cpus(cpus);
    sched_setaffinity(0, sizeof set, &set);
}

}  // namespace legato
