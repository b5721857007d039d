// The running totals that a member serves: contributions to them, and the answers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/catalog.hpp"
#include "engine/frame.hpp"
#include "engine/peers.hpp"
#include "engine/running_total.hpp"
#include "engine/worker.hpp"

namespace legato {

class Totals {
  public:
    Totals(int32_t member, uint32_t epoch, int32_t num_workers, Peers& peers, Worker& worker,
           std::shared_ptr<BufferPool> pool, std::atomic<uint64_t>& next_sequence)
        : member_(member),
          epoch_(epoch),
          num_workers_(num_workers),
          peers_(peers),
          worker_(worker),
          pool_(std::move(pool)),
          next_sequence_(next_sequence) {}

    // All on I/O threads; as Server's of the same names, which see.
    void add(const Header& header, const Tensor& tensor, const Layout& layout, size_t part,
             const std::byte* payload);
    void add_local(const std::shared_ptr<Task>& task, size_t part);
    void tell_late(std::chrono::nanoseconds age);
    bool needs(int32_t worker) const;
    void abandon();
    size_t num_totals() const;

  private:
    using Key = std::pair<uint32_t, uint64_t>;  // tensor and offset
    using TotalPtr = std::shared_ptr<RunningTotal>;

    // Null after `abandon`.
    TotalPtr open(const Slot::Origin& origin, int64_t staleness, const Layout& layout, int32_t worker,
                  bool is_beginning);
    void answer(const TotalPtr& total, const Slot::Origin& origin);

    const int32_t member_;
    const uint32_t epoch_;
    const int32_t num_workers_;
    Peers& peers_;
    Worker& worker_;
    const std::shared_ptr<BufferPool> pool_;
    std::atomic<uint64_t>& next_sequence_;

    mutable std::mutex mutex_;
    std::map<Key, TotalPtr> totals_;
    bool is_abandoned_ = false;
};

}  // namespace legato
