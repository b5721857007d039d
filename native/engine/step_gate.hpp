// Which steps may begin: while members agree on a plan from a step on, nobody begins that step or a later
// one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

namespace legato {

class StepGate {
  public:
    using Action = std::function<void()>;

    // The newest step that has begun; -1 before the first.
    int64_t latest_step() const { return latest_step_; }

    // Whether the step may begin now; then it has begun.
    bool admit(int64_t step) {
        if (step <= latest_step_) return true;  // a round is about steps that nobody has begun
        const std::lock_guard lock(mutex_);
        return admit_locked(step);
    }

    // The same; where it may not begin, the action runs as soon as it may.
    bool admit_or_hold(int64_t step, Action action) {
        if (step <= latest_step_) return true;
        const std::lock_guard lock(mutex_);
        if (admit_locked(step)) return true;
        held_.emplace_back(step, std::move(action));
        return false;
    }

    // Run the action when the step may begin: mostly now.
    void begin(int64_t step, const Action& action) {
        if (admit_or_hold(step, action)) action();
    }

    // Let no step from this one on begin; false, and nothing is closed, where it has begun.
    bool close_from(int64_t step) {
        const std::lock_guard lock(mutex_);
        if (step <= latest_step_) return false;
        closed_from_ = step;
        return true;
    }

    // The round is over: run what was held, in the order in which it came.
    void open() {
        std::vector<std::pair<int64_t, Action>> held;
        {
            const std::lock_guard lock(mutex_);
            closed_from_ = kNever;
            held.swap(held_);
        }
        for (const auto& [step, action] : held) begin(step, action);
    }

  private:
    static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

    bool admit_locked(int64_t step) {
        if (step >= closed_from_) return false;
        if (step > latest_step_) latest_step_ = step;
        return true;
    }

    std::mutex mutex_;
    std::atomic<int64_t> latest_step_ = -1;
    int64_t closed_from_ = kNever;
    std::vector<std::pair<int64_t, Action>> held_;
};

}  // namespace legato
