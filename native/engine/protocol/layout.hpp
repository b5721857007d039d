// How a tensor travels: its parts, and who serves, writes and reads each of them.
//
// Note: one shape for every operation. A part has a server, a writer and a reader, the latter two a rank or
// everyone: push_pull (everyone, everyone), broadcast (root, everyone), part r of an all-gather (r, everyone)
// and of a reduce-scatter (everyone, r), an all-to-all (i, j). Every worker that writes or reads a part sends
// its server one contribution: writers their bytes, mere readers an empty `ready`, which says that the
// destination exists. A writer among others that has nothing to add this time sends `ready` too; when none
// of them had anything, there is no sum, and all get `nothing`. When all have contributed, each gets one
// answer: readers the sum, the others an empty `acknowledge`, as readers get that do without it this time.
// So an answer never arrives before its destination is known, a part is in flight until the server is done
// with it, and what a server must hold is bounded by what its workers have in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace legato {

inline constexpr int32_t kEveryone = -1;

struct Part {
    uint64_t offset;
    uint64_t length;
    int32_t server;
    int32_t writer;
    int32_t reader;
    // By no relay: what travels encoded, and gatherings, come together at their server alone.
    bool is_direct = false;

    bool has_one_writer() const { return writer != kEveryone; }
    bool writes(int32_t worker) const { return writer == kEveryone || writer == worker; }
    bool reads(int32_t worker) const { return reader == kEveryone || reader == worker; }
    bool contributes(int32_t worker) const { return writes(worker) || reads(worker); }
    // The only writer of a part already has what it would read.
    bool is_sent_sum(int32_t worker) const { return reads(worker) && writer != worker; }
};

// The latest step that each worker has begun to contribute to each part. It makes a contribution unique even
// after its sum has gone out: a worker's steps of one tensor only ever grow.
class ContributionLog {
  public:
    ContributionLog(size_t num_parts, size_t num_workers)
        : num_workers_(num_workers), latest_(num_parts * num_workers, -1) {}

    int64_t latest(size_t part, int32_t worker) const {
        return latest_[part * num_workers_ + static_cast<size_t>(worker)];
    }
    // False when the worker has contributed to this or a later step before.
    bool begin(size_t part, int32_t worker, int64_t step) {
        int64_t& latest = latest_[part * num_workers_ + static_cast<size_t>(worker)];
        if (step <= latest) return false;
        latest = step;
        return true;
    }

    size_t num_workers() const { return num_workers_; }

  private:
    size_t num_workers_;
    std::vector<int64_t> latest_;
};

// The parts of a tensor from one agreed step on. Immutable but for the log and what is owed, which belong to
// the server side and are guarded by its lock.
class Layout {
  public:
    Layout(int64_t from_step, std::vector<Part> parts, size_t num_workers);

    int64_t from_step() const { return from_step_; }
    const std::vector<Part>& parts() const { return parts_; }
    size_t num_workers() const { return contributions_.num_workers(); }
    std::optional<size_t> find(uint64_t offset, uint64_t length) const;
    ContributionLog& contributions() const { return contributions_; }
    // What the encoded sums of a part have lost and still owe; each belongs to the slot of its part.
    std::shared_ptr<std::vector<float>> owed(size_t part) const;

  private:
    int64_t from_step_;
    std::vector<Part> parts_;
    mutable ContributionLog contributions_;
    mutable std::vector<std::shared_ptr<std::vector<float>>> owed_;
};

}  // namespace legato
