#include "jax/hand_over.hpp"

#include <thread>
#include <utility>

namespace legato::jax {

namespace {
// While one is busy with the layer whose average came first, the other takes what arrives next.
constexpr int kNumThreads = 2;
}  // namespace

HandOver& HandOver::instance() {
    static HandOver* const hand_over = new HandOver;
    return *hand_over;
}

HandOver::HandOver() {
    for (int i = 0; i < kNumThreads; ++i) std::thread([this] { run(); }).detach();
}

void HandOver::post(Work work) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
    }
    posted_.notify_one();
}

void HandOver::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        posted_.wait(lock, [this] { return !queue_.empty(); });
        const Work work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        work();
        lock.lock();
    }
}

}  // namespace legato::jax
