// The server's side of a member: contributions become sums, sums become answers. A relay (topology.hpp) has
// one too, for its host: its sums become contributions, and what comes back for them becomes answers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/alarm.hpp"
#include "engine/buffer_pool.hpp"
#include "engine/net/peers.hpp"
#include "engine/protocol/catalog.hpp"
#include "engine/protocol/frame.hpp"
#include "engine/protocol/topology.hpp"
#include "engine/server/answers.hpp"
#include "engine/server/gatherings.hpp"
#include "engine/server/slot.hpp"
#include "engine/worker/worker.hpp"

namespace legato {

class Server {
  public:
    struct Options {
        int32_t member;
        uint32_t epoch;
        size_t chunk_bytes;
    };

    Server(const Options& options, const Topology& topology, Catalog& catalog, Peers& peers, Worker& worker,
           Alarm& alarm)
        : options_(options),
          topology_(topology),
          catalog_(catalog),
          peers_(peers),
          worker_(worker),
          alarm_(alarm),
          pool_(std::make_shared<BufferPool>()),
          gatherings_(options.member, options.epoch, topology.num_workers(), peers, worker, pool_,
                      next_sequence_) {}

    // From `from_step` on, answers for these tensors wait until all sums of the step are complete here: a
    // plan's barrier between its two stages. With no tensors, they no longer do. From any thread.
    void set_stage_barrier(int64_t from_step, std::vector<uint32_t> tensors);

    // All others on I/O threads.

    // A checked chunk of a remote contribution, or its `ready`. `part` is the header's part in the layout.
    // Throws ProtocolError when it is not the next, or a second one.
    void add(const Header& header, const Tensor& tensor, const Layout& layout, size_t part,
             const std::byte* payload);
    // The contribution of this member's own worker.
    void add_local(const std::shared_ptr<Task>& task, size_t part);
    // The answer to a part that this member relays is in its own worker's destination, or there is nothing:
    // the others of its host get it too.
    void pass_on(const std::shared_ptr<Task>& task, size_t part, FrameKind kind);
    // Tell those who have contributed to a sum older than `age` whom it still waits for; a relay tells the
    // server too, which knows only its host.
    void tell_late(std::chrono::nanoseconds age);
    // A relay or a server says for whom it waits.
    void hear_late(const Header& header, const Part& part, const std::vector<int32_t>& missing);
    // Whether a sum still waits for this worker.
    bool needs(int32_t worker) const;
    // Drop all sums and ignore what comes later.
    void abandon();

    size_t num_slots() const;
    size_t num_buffer_bytes() const { return pool_->num_bytes(); }

  private:
    struct Key {
        uint32_t tensor;
        int64_t step;
        uint64_t offset;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        size_t operator()(const Key& key) const;
    };
    using SlotPtr = std::shared_ptr<Slot>;

    // The slot of a contribution, made by the first; null after `abandon`.
    SlotPtr open(const Slot::Origin& origin, const Tensor& tensor, const Layout& layout, int32_t worker,
                 bool is_beginning);
    SlotPtr make_slot(const Slot::Origin& origin, const Coding& coding, const Layout& layout) const;
    // The sum is complete: it goes to those who contributed or, from a relay, to the server.
    void complete(const SlotPtr& slot);
    // With the lock held: the complete slots that may be answered now, in the order of their completion.
    std::vector<SlotPtr> pass_barrier(const SlotPtr& slot);
    size_t num_served(const std::vector<uint32_t>& tensors, int64_t step) const;
    // Ahead of all answers, to every worker: whoever waits for a norm does not wait for the averages.
    void tell_measure(const SlotPtr& slot);
    void answer(const SlotPtr& slot, uint64_t sequence);
    void send_on(const SlotPtr& slot, uint64_t sequence);
    // To those who have contributed here.
    void send_late(Header header, const Part& part, const std::vector<int32_t>& missing);
    Header header_of(const Slot::Origin& origin, FrameKind kind) const {
        return answer_header(origin, kind, options_.member, options_.epoch);
    }

    const Options options_;
    const Topology& topology_;
    Catalog& catalog_;
    Peers& peers_;
    Worker& worker_;
    Alarm& alarm_;
    const std::shared_ptr<BufferPool> pool_;
    std::atomic<uint64_t> next_sequence_ = 0;  // of answers
    Gatherings gatherings_;                    // of the tensors that are not summed step by step

    mutable std::mutex mutex_;
    std::unordered_map<Key, SlotPtr, KeyHash> slots_;
    struct Barrier {
        int64_t from_step;
        std::vector<uint32_t> tensors;
    };
    std::vector<Barrier> barriers_;  // by from_step
    struct Held {
        size_t num_missing;  // sums of the step that are not complete
        std::vector<SlotPtr> slots;
    };
    std::unordered_map<int64_t, Held> held_;  // by step
    bool is_abandoned_ = false;
};

}  // namespace legato
