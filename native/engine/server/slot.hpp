// The sum of one part in one step, while it comes together.
//
// Note: where a sum lives. A sum that somebody here reads is made in the reader's own destination as soon as
// that is known: with an in-place task, the joint member's contribution is then never copied at all. What
// came earlier is in a pooled buffer and is added once. f16 and bf16 always add up in a pooled f32 buffer and
// are rounded into the destination, or into a second buffer. Whatever memory it is, the answers are sent from
// there, so a task's memory is lent until the last of them has left.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/protocol/layout.hpp"
#include "engine/protocol/topology.hpp"
#include "engine/worker/task.hpp"
#include "kernels/codec.hpp"
#include "kernels/dtype.hpp"
#include "kernels/measure.hpp"

namespace legato {

class Slot {
  public:
    struct Origin {
        uint32_t tensor;
        int64_t step;
        DType dtype;
        CodecId pull_codec;
        Reduction reduction;
        int32_t pull_rank;
        size_t part_index;
        Part part;
    };

    // Bytes on the wire of a contribution, and of the sum.
    struct Lengths {
        uint64_t push;
        uint64_t pull;
    };

    // At `member`, which serves the part or relays it for its host.
    Slot(const Origin& origin, const Lengths& lengths, int32_t member, const Topology& topology,
         size_t chunk_bytes, std::shared_ptr<BufferPool> pool);
    virtual ~Slot() = default;

    const Origin& origin() const { return origin_; }
    std::chrono::steady_clock::time_point created_at() const { return created_at_; }

    // The slot's lock guards everything below until it is complete; then nothing changes any more.
    std::mutex& mutex() { return mutex_; }

    // How much of its contribution, or of its host's, a worker has delivered.
    uint64_t progress(int32_t worker) const { return progress_[static_cast<size_t>(worker)]; }
    // The next bytes of a worker's contribution.
    virtual void add(int32_t worker, const std::byte* data, uint64_t num_bytes);
    // A worker that only reads is ready, or one that has nothing to add.
    virtual void add_ready(int32_t worker);
    // The whole contribution of this member's own worker, which must not have progressed yet.
    virtual void add_local(int32_t worker, std::shared_ptr<Task> task);
    // A contributor does without the sum.
    void add_unread(int32_t worker) { unread_by_.push_back(worker); }
    bool is_sent_sum(int32_t worker) const {
        return origin_.part.is_sent_sum(worker) && std::ranges::count(unread_by_, worker) == 0;
    }
    // A contributor wants the sum measured, once it is complete: of the numbers that workers will have.
    void ask_measure() { is_measured_ = true; }
    bool is_measured() const { return is_measured_; }
    virtual Measure measured() const;
    // Whether the sum may be sent from the local task's memory.
    virtual bool lends_memory() const { return true; }

    bool is_complete() const { return num_final_ == origin_.part.length; }
    // Of a complete slot: nobody had anything to add.
    bool is_empty() const { return num_filled_ == 0 && !origin_.part.has_one_writer(); }
    bool is_missing(int32_t worker) const { return progress(worker) < lengths_.push; }
    std::vector<int32_t> missing() const;
    // Which workers of its host a relay waits for; until it says so, all of them are missing.
    void note_missing(int32_t relay, std::vector<int32_t> workers) { reports_[relay] = std::move(workers); }

    // Of the complete sum.
    const std::byte* sum() const { return sum_; }
    uint64_t sum_bytes() const { return lengths_.pull; }
    // None where nobody beyond this host gets it.
    std::optional<uint32_t> checksum(size_t chunk) const {
        return checksums_.empty() ? std::nullopt : std::optional(checksums_[chunk]);
    }
    const std::shared_ptr<Task>& local_task() const { return local_task_; }

  private:
    // Where the running total is at `offset`; widened types take more room there.
    std::byte* total_at(uint64_t offset) const { return total_ + offset / item_bytes_ * total_item_bytes_; }
    void ensure_total();
    void combine(uint64_t offset, const std::byte* data, uint64_t num_bytes);
    void lend_destination(int32_t worker, const std::byte* source, std::byte* destination);
    void advance(int32_t worker, uint64_t progress);
    void make_final(uint64_t begin, uint64_t end);

    const Origin origin_;
    const int32_t member_;
    const Topology& topology_;
    const DType dtype_;
    const size_t item_bytes_;
    const size_t total_item_bytes_;
    const double factor_;
    const std::chrono::steady_clock::time_point created_at_;

    std::mutex mutex_;
    std::map<int32_t, std::vector<int32_t>> reports_;  // of relays, who is missing
    std::byte* total_ = nullptr;
    bool is_measured_ = false;
    std::vector<int32_t> unread_by_;

  protected:
    const Lengths lengths_;
    const size_t chunk_bytes_;
    const std::shared_ptr<BufferPool> pool_;
    std::vector<uint64_t> progress_;  // by worker; one that sends nothing here is through from the start
    uint64_t num_filled_ = 0;         // this many bytes hold at least one contribution
    uint64_t num_final_ = 0;          // this many bytes hold all of them
    const std::byte* sum_ = nullptr;
    BufferPool::Buffer total_buffer_;
    BufferPool::Buffer sum_buffer_;
    std::vector<uint32_t> checksums_;  // of each chunk of the sum, where it is to be sent at all
    std::shared_ptr<Task> local_task_;
};

}  // namespace legato
