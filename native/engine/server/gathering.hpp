// Where the contributions to one part come together in another way than all of one step (slot.hpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/server/slot.hpp"
#include "engine/worker/task.hpp"

namespace legato {

class Gathering {
  public:
    // A worker whose contribution is complete and who waits for its answer.
    struct Asker {
        int32_t worker;
        Slot::Origin origin;
        std::shared_ptr<Task> task;  // of this member's own worker
        std::chrono::steady_clock::time_point since;
    };
    struct Answer {
        Asker asker;
        std::shared_ptr<const BufferPool::Buffer> sum;  // null: nobody had anything to add
        std::vector<int32_t> without;                   // whose contributions are not in it
    };

    Gathering(const Slot::Origin& origin, int32_t num_workers, std::shared_ptr<BufferPool> pool)
        : num_bytes_(origin.part.length),
          dtype_(origin.dtype),
          reduction_(origin.reduction),
          pool_(std::move(pool)),
          latest_(static_cast<size_t>(num_workers), -1),
          progress_(static_cast<size_t>(num_workers), 0) {}
    virtual ~Gathering() = default;
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;

    // Guards everything below.
    std::mutex& mutex() { return mutex_; }

    Reduction reduction() const { return reduction_; }
    // How much of its present contribution a worker has delivered.
    uint64_t progress(int32_t worker) const { return progress_[static_cast<size_t>(worker)]; }
    // The next bytes of a contribution; true when they were the last.
    bool add(int32_t worker, int64_t step, const std::byte* data, uint64_t num_bytes) {
        uint64_t& progress = progress_[static_cast<size_t>(worker)];
        put(worker, step, progress, data, num_bytes);
        progress += num_bytes;
        return progress == num_bytes_;
    }
    // The contribution is complete.
    void ask(Asker asker) {
        progress_[static_cast<size_t>(asker.worker)] = 0;
        latest_[static_cast<size_t>(asker.worker)] = asker.origin.step;
        come(asker.worker, asker.origin.step);
        askers_.push_back(std::move(asker));
    }
    // To those who need not wait any more.
    virtual std::vector<Answer> take_due() = 0;
    // Whom an asker waits for.
    virtual std::vector<int32_t> missing(const Asker& asker) const = 0;
    // Nothing is kept for anybody.
    virtual bool is_idle() const = 0;
    // Nobody will contribute any more.
    virtual bool is_over() const { return false; }

    const std::vector<Asker>& askers() const { return askers_; }
    bool is_asking(int32_t worker) const {
        return std::ranges::any_of(askers_, [&](const Asker& asker) { return asker.worker == worker; });
    }

  protected:
    virtual void put(int32_t worker, int64_t step, uint64_t offset, const std::byte* data,
                     uint64_t num_bytes) = 0;
    virtual void come(int32_t worker, int64_t step) = 0;

    int32_t num_workers() const { return static_cast<int32_t>(latest_.size()); }

    const uint64_t num_bytes_;
    const DType dtype_;
    const Reduction reduction_;
    const std::shared_ptr<BufferPool> pool_;
    std::vector<int64_t> latest_;  // the last step that each worker has contributed to
    std::vector<Asker> askers_;

  private:
    std::mutex mutex_;
    std::vector<uint64_t> progress_;  // by worker
};

}  // namespace legato
