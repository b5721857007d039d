// The gatherings that a member serves: contributions to them, and the answers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/buffer_pool.hpp"
#include "engine/net/peers.hpp"
#include "engine/protocol/catalog.hpp"
#include "engine/protocol/frame.hpp"
#include "engine/server/gathering.hpp"
#include "engine/worker/worker.hpp"

namespace legato {

class Gatherings {
  public:
    Gatherings(int32_t member, uint32_t epoch, int32_t num_workers, Peers& peers, Worker& worker,
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
    // Those that keep something.
    size_t num_active() const;

  private:
    using Key = std::pair<uint32_t, uint64_t>;  // tensor and offset
    using GatheringPtr = std::shared_ptr<Gathering>;

    // Null after `abandon`.
    GatheringPtr open(const Slot::Origin& origin, const Tensor& tensor, const Layout& layout, int32_t worker,
                      bool is_beginning);
    GatheringPtr make(const Slot::Origin& origin, const Tensor& tensor) const;
    void answer_due(const GatheringPtr& gathering, const Slot::Origin& origin);
    void give(const Gathering::Answer& answer);
    void send(const Gathering::Answer& answer);

    const int32_t member_;
    const uint32_t epoch_;
    const int32_t num_workers_;
    Peers& peers_;
    Worker& worker_;
    const std::shared_ptr<BufferPool> pool_;
    std::atomic<uint64_t>& next_sequence_;

    mutable std::mutex mutex_;
    std::map<Key, GatheringPtr> gatherings_;
    bool is_abandoned_ = false;
};

}  // namespace legato
