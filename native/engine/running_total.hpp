// The running total of one part, which outlives steps.
//
// Note: bounded staleness. A tensor that is declared with a staleness is never summed step by step: whatever
// comes is added to one total, and whoever has contributed is answered with the total as it is then. Only who
// is too far ahead waits: the answer to step t comes when every worker has contributed to step t - staleness.
//
//     staleness 1      step    0   1   2   3
//     worker 0                 ■   ■   ■   wait: worker 1 has not contributed to step 1
//     worker 1                 ■   …
//
// (Its answers to steps 0 and 1 came at once; that to step 2 is what it waits for.) With staleness 0
// everybody waits for everybody. A contribution at kLastStep says that its worker will not come again: nobody
// waits for it any more, and since its own answer waits for everybody's last, that answer is the same for
// all.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/slot.hpp"
#include "engine/task.hpp"

namespace legato {

// Later than any step that is counted; far enough from the end to subtract from.
inline constexpr int64_t kLastStep = INT64_MAX / 2;

class RunningTotal {
  public:
    // A worker whose contribution is complete and who waits for its answer.
    struct Asker {
        int32_t worker;
        Slot::Origin origin;
        std::shared_ptr<Task> task;  // of this member's own worker
        std::chrono::steady_clock::time_point since;
    };

    RunningTotal(const Slot::Origin& origin, int64_t staleness, int32_t num_workers,
                 const std::shared_ptr<BufferPool>& pool);

    // Guards everything below.
    std::mutex& mutex() { return mutex_; }

    Reduction reduction() const { return reduction_; }
    // How much of its present contribution a worker has delivered.
    uint64_t progress(int32_t worker) const { return progress_[static_cast<size_t>(worker)]; }
    // The next bytes of a contribution; true when they were the last.
    bool add(int32_t worker, const std::byte* data, uint64_t num_bytes);
    // The contribution is complete.
    void ask(Asker asker);
    // Those who need not wait any more.
    std::vector<Asker> take_due();
    // The answer to whoever is due now.
    void write(std::byte* output) const;
    // Everybody has contributed for the last time and been answered.
    bool is_over() const;

    const std::vector<Asker>& askers() const { return askers_; }
    bool is_asking(int32_t worker) const {
        return std::ranges::any_of(askers_, [&](const Asker& asker) { return asker.worker == worker; });
    }
    // Whom an asker waits for.
    std::vector<int32_t> missing(const Asker& asker) const;

  private:
    bool is_missing(int32_t worker, const Asker& asker) const {
        return latest_[static_cast<size_t>(worker)] < asker.origin.step - staleness_;
    }

    const uint64_t num_bytes_;
    const DType dtype_;
    const Reduction reduction_;
    const int64_t staleness_;

    std::mutex mutex_;
    BufferPool::Buffer total_;
    std::vector<uint64_t> progress_;  // by worker
    std::vector<int64_t> latest_;     // the last step that each worker has contributed to
    std::vector<Asker> askers_;
};

}  // namespace legato
