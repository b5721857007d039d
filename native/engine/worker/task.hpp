// The synchronisation of one tensor in one step, as this member's worker sees it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/forks.hpp"
#include "engine/protocol/catalog.hpp"
#include "engine/protocol/failure.hpp"
#include "engine/protocol/layout.hpp"
#include "engine/worker/pieces.hpp"
#include "kernels/measure.hpp"

namespace legato {

class Task;

// The caller's memory for a tensor, or for the segment of it that begins at `begin`.
template <typename Byte>
struct Span {
    Byte* data = nullptr;
    uint64_t num_bytes = 0;
    uint64_t begin = 0;

    uint64_t end() const { return begin + num_bytes; }
    // Where the tensor's byte at `offset` is. As a number: parts that are never touched may lie elsewhere.
    Byte* at(uint64_t offset) const {
        return reinterpret_cast<Byte*>(reinterpret_cast<uintptr_t>(data) + (offset - begin));
    }
};

struct Submission {
    uint32_t tensor = 0;
    int64_t step = 0;
    int32_t push_rank = 0;  // what has the smallest starts first
    int32_t pull_rank = 0;  // of its sum, at the server
    Span<const std::byte> source = {};
    Span<std::byte> destination = {};
    Reduction reduction = Reduction::sum;
    bool is_absent = false;                    // nothing to add to the sum, only a destination for it
    std::shared_ptr<Task> after = nullptr;     // no part starts before this one is done
    const float* scale = nullptr;              // what `after` brings: the largest magnitude among all workers
    std::shared_ptr<Pieces> pieces = nullptr;  // no part starts before its bytes are ready; null: all are
    bool is_measured = false;                  // servers tell the measures of its sums, ahead of these
    bool is_unread = false;  // other members may keep what they have summed: here it is not needed
    bool is_coded = false;   // its memory has the parts as they travel, one behind the other, both ways
};

// waiting ──start──► started ──all bytes handed over──► sent ──answer complete──► finished
// A part in which this worker has no share, or without bytes, is finished from the start.
enum class PartState : uint8_t { waiting, started, sent, finished };

class Task : public Submission {
  public:
    Task(const Submission& submission, const Tensor& tensor, std::shared_ptr<const Layout> layout,
         int32_t worker, uint64_t sequence);

    const Tensor& declared;
    const std::shared_ptr<const Layout> layout;
    const uint64_t sequence;
    std::shared_ptr<CodingMemory> memory;  // set before the first part starts, where the tensor is encoded

    // Bytes of a part on the wire.
    uint64_t push_bytes(size_t part) const { return declared.coding.push_bytes(layout->parts()[part]); }
    uint64_t pull_bytes(size_t part) const { return declared.coding.pull_bytes(layout->parts()[part]); }
    struct Extent {
        uint64_t offset;
        uint64_t length;
    };
    // Where a part is in the caller's memory.
    Extent extent(size_t part) const;
    // This worker's contribution to a part of an encoded tensor, and its sum. On I/O threads.
    void encode(size_t part, std::byte* output) const;
    void decode(size_t part, const std::byte* input) const;

    // Guarded by the Worker's lock.
    struct Progress {
        PartState state;
        uint64_t received = 0;
        bool is_receiving = false;            // a chunk is under way, on one connection
        bool is_measured = false;             // its measure is here
        BufferPool::Buffer encoded_sum = {};  // what has been received, where it is encoded
    };
    std::vector<Progress> parts;
    size_t num_unfinished = 0;                     // parts, and measures that were asked for
    bool may_start = false;                        // nothing else has to be done before it
    size_t num_offered = 0;                        // the first parts, whose bytes are ready
    std::vector<std::shared_ptr<Task>> followers;  // wait until this one is done

    // What the holder of the handle sees. From any thread; in a child of the process it has failed.
    bool is_done() const;
    bool wait(std::chrono::nanoseconds timeout) const;
    // Until all measures are here, or it is over.
    bool wait_measured(std::chrono::nanoseconds timeout) const;
    // Until so many of its first bytes have arrived, or it is over.
    bool wait_first(uint64_t num_bytes, std::chrono::nanoseconds timeout) const;
    // Bytes from the beginning on that have arrived: they are the holder's, whatever is missing behind them.
    uint64_t first_bytes() const;
    // Of all parts, in their order; none where a measure is missing.
    std::optional<Measure> measure() const;
    std::optional<Failure> failure() const;
    std::vector<int32_t> missing() const;
    // Nobody had anything to add: the destination is as it was.
    bool is_empty() const;
    // The workers whose contributions are missing in the answer to a part or more.
    std::vector<int32_t> without() const;
    // Call this once when it is over, well or badly: now, or on the thread that ends it, with no lock held.
    void when_over(std::function<void()> action);

    void complete();
    void set_empty();
    void arrive(size_t part);
    void add_without(const std::vector<int32_t>& workers);
    void set_measure(size_t part, const Measure& measure);
    // The same failure for every task, told of this one; without words where there is no memory for them.
    void fail(const Failure& reason) noexcept;
    void set_missing(uint64_t part_offset, std::vector<int32_t> workers);

  private:
    CodecContext context(size_t part, uint32_t contributor) const;
    void advance();  // with the lock
    void end(std::optional<Failure> failure) noexcept;

    const Maker maker_;
    const int32_t worker_;
    std::vector<uint64_t> coded_offsets_;  // of each part, where they travel as they lie in memory
    mutable std::mutex mutex_;
    mutable std::condition_variable is_over_;
    bool is_done_ = false;
    std::vector<bool> has_arrived_;               // by part
    size_t num_first_ = 0;                        // parts that have arrived, and all before them
    uint64_t first_bytes_ = 0;                    // theirs
    mutable uint64_t wanted_bytes_ = UINT64_MAX;  // the least that anybody waits for
    bool is_empty_ = false;
    std::optional<Failure> failure_;
    std::set<int32_t> without_;
    std::vector<Measure> measures_;  // by part
    size_t num_unmeasured_ = 0;
    std::map<uint64_t, std::vector<int32_t>> missing_;  // by part
    std::vector<std::function<void()>> when_over_;
};

}  // namespace legato
