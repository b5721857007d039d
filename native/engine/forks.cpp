#include "engine/forks.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace legato {

namespace {

struct Registry {
    std::mutex mutex;
    std::vector<int> descriptors;
    std::atomic<uint64_t> generation = 0;  // how many forks have led to this process

    Registry();
};

// Never destroyed: descriptors may be closed, and processes forked, until the very end.
Registry& registry() {
    static auto* const only = new Registry;
    return *only;
}

// The lock is held across the fork, so that a child finds the list whole.
Registry::Registry() {
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                       Registry& here = registry();
                       for (const int fd : here.descriptors) ::close(fd);
                       here.descriptors.clear();
                       ++here.generation;
                       here.mutex.unlock();
                   });
}

}  // namespace

void keep_from_children(int fd) {
    Registry& here = registry();
    const std::lock_guard lock(here.mutex);
    try {
        here.descriptors.push_back(fd);
    } catch (...) {
        ::close(fd);
        throw;
    }
}

void close_here(int fd) noexcept {
    Registry& here = registry();
    const std::lock_guard lock(here.mutex);
    std::erase(here.descriptors, fd);
    ::close(fd);
}

Maker::Maker() : generation_(registry().generation) {}

bool Maker::is_this_process() const noexcept { return generation_ == registry().generation; }

}  // namespace legato
