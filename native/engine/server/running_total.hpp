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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/server/gathering.hpp"

namespace legato {

// Later than any step that is counted; far enough from the end to subtract from.
inline constexpr int64_t kLastStep = INT64_MAX / 2;

class RunningTotal final : public Gathering {
  public:
    RunningTotal(const Slot::Origin& origin, int64_t staleness, int32_t num_workers,
                 std::shared_ptr<BufferPool> pool);

    std::vector<Answer> take_due() override;
    std::vector<int32_t> missing(const Asker& asker) const override;
    bool is_idle() const override { return false; }
    // Everybody has contributed for the last time and been answered.
    bool is_over() const override;

  private:
    void put(int32_t worker, int64_t step, uint64_t offset, const std::byte* data,
             uint64_t num_bytes) override;
    void come(int32_t, int64_t) override {}
    std::shared_ptr<const BufferPool::Buffer> snapshot() const;

    const int64_t staleness_;
    BufferPool::Buffer total_;
};

}  // namespace legato
