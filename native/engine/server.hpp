// The server's side of a member: contributions become sums, sums become answers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/catalog.hpp"
#include "engine/frame.hpp"
#include "engine/peers.hpp"
#include "engine/slot.hpp"
#include "engine/worker.hpp"

namespace legato {

class Server {
  public:
    struct Options {
        int32_t member;
        int32_t num_workers;
        uint32_t epoch;
        size_t chunk_bytes;
    };

    Server(const Options& options, Peers& peers, Worker& worker)
        : options_(options), peers_(peers), worker_(worker), pool_(std::make_shared<BufferPool>()) {}

    // All on I/O threads.

    // A checked chunk of a remote contribution, or its `ready`. `part` is the header's part in the layout.
    // Throws ProtocolError when it is not the next, or a second one.
    void add(const Header& header, const Tensor& tensor, const Layout& layout, size_t part,
             const std::byte* payload);
    // The contribution of this member's own worker.
    void add_local(const std::shared_ptr<Task>& task, size_t part);
    // Tell those who have contributed to a sum older than `age` whom it still waits for.
    void tell_late(std::chrono::nanoseconds age);
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
    void answer(const SlotPtr& slot);
    void send_late(const Slot::Origin& origin, const std::vector<int32_t>& missing);
    Header header_of(const Slot::Origin& origin, FrameKind kind) const;

    const Options options_;
    Peers& peers_;
    Worker& worker_;
    const std::shared_ptr<BufferPool> pool_;

    mutable std::mutex mutex_;
    std::unordered_map<Key, SlotPtr, KeyHash> slots_;
    uint64_t next_sequence_ = 0;
    bool is_abandoned_ = false;
};

}  // namespace legato
