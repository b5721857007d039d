#include "engine/worker/word_watch.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <utility>

namespace legato {

namespace {

// A piece of 2 MB is on a link of 25 Gbit/s for seven times as long.
constexpr std::chrono::microseconds kBetweenLooks{100};
constexpr unsigned long kTimerSlackNs = 5'000;  // the kernel's own is 50 µs

bool has_reached(const uint32_t* word, uint32_t mark) {
    // Acquire: what the stream copied before it set the word is read after this.
    return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - mark) >= 0;
}

}  // namespace

void WordWatch::after(const uint32_t* word, uint32_t mark, std::function<void()> action) {
    {
        const std::lock_guard lock(mutex_);
        if (is_stopped_) return;
        awaited_.push_back({word, mark, std::move(action)});
        if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    }
    changed_.notify_one();
}

void WordWatch::stop() {
    {
        const std::lock_guard lock(mutex_);
        is_stopped_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void WordWatch::run() {
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_stopped_ || !awaited_.empty(); });
        if (is_stopped_) return;
        const bool is_set = has_reached(awaited_.front().word, awaited_.front().mark);
        std::function<void()> action;
        if (is_set) {
            action = std::move(awaited_.front().action);
            awaited_.pop_front();
        }
        lock.unlock();
        if (is_set)
            action();
        else
            std::this_thread::sleep_for(kBetweenLooks);
        lock.lock();
    }
}

}  // namespace legato
