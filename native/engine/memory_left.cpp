#include "engine/memory_left.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace legato {

namespace {

// Whoever holds less than this share of a memory is not what fills it.
constexpr size_t kShare = 8;

struct Memory {
    size_t limit;
    size_t left;
};

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
    std::array<const char*, 2> cache;  // what the kernel takes back before it ends anybody
};

constexpr std::array kVersions{
    Cgroup{"", "/sys/fs/cgroup", "/memory.max", "/memory.current", {"inactive_file", "active_file"}},
    Cgroup{"memory",
           "/sys/fs/cgroup/memory",
           "/memory.limit_in_bytes",
           "/memory.usage_in_bytes",
           {"total_inactive_file", "total_active_file"}},
};

std::optional<Memory> in_cgroup(const Cgroup& version) {
    // In a container the tree may begin at the process's own place.
    for (const std::string& folder :
         {version.root + place_in(version.controller), std::string(version.root)}) {
        const auto limit = number_in(folder + version.limit);
        const auto usage = number_in(folder + version.usage);
        if (!limit || !usage) continue;
        size_t cache = 0;
        for (const char* kind : version.cache)
            cache += number_after(folder + "/memory.stat", kind).value_or(0);
        const size_t held = *usage - std::min(cache, *usage);
        return Memory{*limit, *limit - std::min(held, *limit)};
    }
    return {};
}

std::optional<Memory> on_machine() {
    const auto total = number_after("/proc/meminfo", "MemTotal:");
    const auto available = number_after("/proc/meminfo", "MemAvailable:");
    if (!total || !available) return {};
    return Memory{*total * 1024, *available * 1024};
}

}  // namespace

bool is_memory_short(size_t wanted_bytes, size_t held_bytes) {
    const auto is_short = [&](const std::optional<Memory>& memory) {
        return memory && memory->left < wanted_bytes && held_bytes >= memory->limit / kShare;
    };
    return is_short(on_machine()) || std::ranges::any_of(kVersions, [&](const Cgroup& version) {
               return is_short(in_cgroup(version));
           });
}

}  // namespace legato
