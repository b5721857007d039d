#include "engine/memory_left.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace legato {

namespace {

// Whoever holds less than this share of a memory is not what fills it.
constexpr size_t kShare = 8;

struct Memory {
    size_t limit;
    size_t left;
};

// Without C++'s streams, whose numbers cannot be relied on here: in a process with torch for CUDA one of them
// read 13 bytes, or 0, from a limit that says `max`.
std::string text_of(const std::string& path) {
    std::string text;
    if (std::FILE* file = std::fopen(path.c_str(), "re")) {
        std::array<char, 4096> some;
        while (const size_t count = std::fread(some.data(), 1, some.size(), file))
            text.append(some.data(), count);
        std::fclose(file);
    }
    return text;
}

// The number that a text begins with, after spaces; none in `max`.
std::optional<size_t> number_in(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    size_t number;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    return parsed.ec == std::errc() ? std::optional(number) : std::nullopt;
}

// What follows a word that begins a line, to the end of the text: `MemAvailable:   19073024 kB`.
std::string_view after(std::string_view text, std::string_view word) {
    while (!text.empty()) {
        if (text.starts_with(word) && text.substr(word.size()).starts_with(' '))
            return text.substr(word.size());
        text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    }
    return text;
}

// Where the process is in the tree of a controller; version 2 has one tree, whose name is empty.
std::string place_in(std::string_view controller) {
    const std::string text = text_of("/proc/self/cgroup");
    for (std::string_view left = text; !left.empty();) {
        const std::string_view line = left.substr(0, left.find('\n'));
        left.remove_prefix(std::min(line.size() + 1, left.size()));
        const size_t first = line.find(':');
        const size_t second = line.find(':', first + 1);
        if (second != std::string_view::npos && line.substr(first + 1, second - first - 1) == controller)
            return std::string(line.substr(second + 1));
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
        const auto limit = number_in(text_of(folder + version.limit));
        const auto usage = number_in(text_of(folder + version.usage));
        if (!limit || !usage) continue;
        const std::string stat = text_of(folder + "/memory.stat");
        size_t cache = 0;
        for (const char* kind : version.cache) cache += number_in(after(stat, kind)).value_or(0);
        const size_t held = *usage - std::min(cache, *usage);
        return Memory{*limit, *limit - std::min(held, *limit)};
    }
    return {};
}

std::optional<Memory> on_machine() {
    const std::string text = text_of("/proc/meminfo");
    const auto total = number_in(after(text, "MemTotal:"));
    const auto available = number_in(after(text, "MemAvailable:"));
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
