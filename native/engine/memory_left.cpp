#include "engine/memory_left.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace legato {

namespace {

// The number behind a word that begins a line: `MemAvailable:   19073024 kB`.
std::optional<size_t> number_after(const std::string& path, const std::string& word) {
    std::ifstream file(path);
    for (std::string first; file >> first; file.ignore(INT32_MAX, '\n')) {
        size_t number;
        if (first == word && file >> number) return number;
    }
    return {};
}

std::optional<size_t> number_in(const std::string& path) {
    std::ifstream file(path);
    size_t number;
    if (file >> number) return number;
    return {};  // `max`, or there is no such file
}

// Where the process is in the tree of a controller; version 2 has one tree, whose name is empty.
std::string place_in(const std::string& controller) {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first + 1);
        if (second != std::string::npos && line.substr(first + 1, second - first - 1) == controller)
            return line.substr(second + 1);
    }
    return "/";
}

struct Cgroup {
    const char* controller;
    const char* root;
    const char* limit;
    const char* usage;
    const char* cache;  // what the kernel takes back before it ends anybody
};

constexpr std::array kVersions{
    Cgroup{"", "/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file"},
    Cgroup{"memory", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
           "total_inactive_file"},
};

std::optional<size_t> left_in(const Cgroup& version) {
    // In a container the tree may begin at the process's own place.
    for (const std::string& folder :
         {version.root + place_in(version.controller), std::string(version.root)}) {
        const auto limit = number_in(folder + version.limit);
        const auto usage = number_in(folder + version.usage);
        if (!limit || !usage) continue;
        const size_t cache = number_after(folder + "/memory.stat", version.cache).value_or(0);
        const size_t held = *usage - std::min(cache, *usage);
        return *limit - std::min(held, *limit);
    }
    return {};
}

// Note: gVisor does not know the machine's memory. It takes the next power of two above what is in use for
// the total, and the rest for available: next to nothing, whenever use comes near that power. On an H200's
// host with 128 GiB a healthy job was refused its first sums. No real total is a power of two: the kernel
// keeps some.
std::optional<size_t> left_on_machine() {
    const auto total = number_after("/proc/meminfo", "MemTotal:");
    const auto available = number_after("/proc/meminfo", "MemAvailable:");
    if (!total || !available || std::has_single_bit(*total)) return {};
    return *available * 1024;
}

}  // namespace

size_t memory_left() {
    size_t left = left_on_machine().value_or(SIZE_MAX);
    for (const Cgroup& version : kVersions) left = std::min(left, left_in(version).value_or(SIZE_MAX));
    return left;
}

}  // namespace legato
