#include "engine/worker/start_queue.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace legato {

namespace {

auto key(const StartQueue::ReadyPart& ready) {
    const Task& task = *ready.task;
    return std::tuple(task.push_rank, task.step, task.sequence, task.layout->parts()[ready.part].offset);
}

constexpr auto kStartsLater = [](const auto& a, const auto& b) { return key(b) < key(a); };

}  // namespace

void StartQueue::set_credit(int64_t from_step, uint64_t credit_bytes) {
    std::erase_if(credits_, [&](const Credit& credit) { return credit.from_step >= from_step; });
    credits_.push_back({from_step, credit_bytes});
    // Parts of a step and the one before it may wait at the same time, not more.
    while (credits_.size() > 2 && credits_[1].from_step < latest_step_) credits_.erase(credits_.begin());
}

void StartQueue::add(std::shared_ptr<Task> task, size_t part) {
    latest_step_ = std::max(latest_step_, task->step);
    ready_.push_back({std::move(task), part});
    std::push_heap(ready_.begin(), ready_.end(), kStartsLater);
}

std::optional<StartQueue::ReadyPart> StartQueue::start_next() {
    if (ready_.empty()) return std::nullopt;
    const uint64_t credit = credit_at(ready_.front().task->step);
    const uint64_t after = in_flight_bytes_ + ready_.front().length();
    if (credit != 0 && in_flight_bytes_ != 0 && after > credit) return std::nullopt;
    std::pop_heap(ready_.begin(), ready_.end(), kStartsLater);
    ReadyPart next = std::move(ready_.back());
    ready_.pop_back();
    in_flight_bytes_ = after;
    peak_in_flight_bytes_ = std::max(peak_in_flight_bytes_, after);
    return next;
}

uint64_t StartQueue::credit_at(int64_t step) const {
    uint64_t num_bytes = 0;
    for (const Credit& credit : credits_)
        if (credit.from_step <= step) num_bytes = credit.num_bytes;
    return num_bytes;
}

}  // namespace legato
