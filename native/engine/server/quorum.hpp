// The sums of one part that do not wait for the slowest.
//
// Note: backups. With b backups a step of n workers is over when n - b of them have contributed. Their sum,
// an average divided by their number, is the answer to all; it names those without whom it was made. Who
// comes later adds nothing, to this step or any other, and gets the same sum at once: all have the same bits.
//
//     backups 1        step t       step t+1
//     worker 0         ■ ┐          ■ ┐
//     worker 1         ■ ┴► sum     ┊ │         its contribution to step t+1 is dropped
//     worker 2         ┊ (dropped)  ■ ┴► sum
//
// A sum is kept until the last worker has come for it, and contributions lie side by side until it is made.
// So that this has an end, who is kMaxBehind steps behind is waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/server/gathering.hpp"

namespace legato {

inline constexpr int64_t kMaxBehind = 4;

class Quorum final : public Gathering {
  public:
    Quorum(const Slot::Origin& origin, int32_t backups, int32_t num_workers, std::shared_ptr<BufferPool> pool)
        : Gathering(origin, num_workers, std::move(pool)), backups_(backups) {}

    std::vector<Answer> take_due() override;
    std::vector<int32_t> missing(const Asker& asker) const override;
    bool is_idle() const override { return steps_.empty(); }

  private:
    struct Step {
        std::vector<BufferPool::Buffer> contributions;  // by worker; none where there is nothing to add
        std::vector<int32_t> come;                      // in the order in which they did
        bool is_closed = false;
        std::shared_ptr<const BufferPool::Buffer> sum;  // of a closed step, where there is one
        std::vector<int32_t> without;
    };

    void put(int32_t worker, int64_t step, uint64_t offset, const std::byte* data,
             uint64_t num_bytes) override;
    void come(int32_t worker, int64_t step) override;
    Step& at(int64_t step);
    bool can_close(int64_t number, const Step& step) const;
    void close(Step& step) const;
    std::vector<int32_t> absentees(const Step& step) const;

    const int32_t backups_;
    std::map<int64_t, Step> steps_;
};

}  // namespace legato
