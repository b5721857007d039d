// Takes the tensors of a schedule one by one as they become ready, and gives a bucket to the engine when all
// of it is there. What does not change from step to step is known here, so that a tensor costs one call.
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
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "engine/step_gate.hpp"

namespace legato {

class Collector : public std::enable_shared_from_this<Collector> {
  public:
    struct Member {
        uint32_t tensor;
        std::string name;
        uint64_t num_bytes;
        std::optional<uint32_t> scale;  // the tensor by which workers agree on the scale of this one's codec
    };
    struct Bucket {
        std::vector<uint32_t> members;
        int32_t push_rank;
        int32_t pull_rank;
    };
    // Told once of each tensor: with null when its average has arrived, otherwise with the reason.
    using Done = std::function<void(const char* error)>;

    // Without a gate its steps are not those that plans count, and begin at once.
    Collector(std::shared_ptr<Engine> engine, std::shared_ptr<StepGate> gate, std::vector<Member> members);

    // Every member is in one bucket. Steps from this one on go by it; earlier ones as before.
    void follow(int64_t from_step, std::vector<Bucket> buckets);

    // From its next step on a member passes through the host in pieces (pieces.hpp): of what is added,
    // nothing is ready. The words of a step get the mark `mark_of` has for it. Throws std::invalid_argument
    // where its scale has to be agreed on, for which all of it must be there.
    void set_pieces(uint32_t index, uint64_t piece_bytes, uint32_t* words);
    static uint32_t mark_of(int64_t step) { return static_cast<uint32_t>(step + 1); }
    // From its next step on what is added of a member is encoded already, and so is what comes back: its
    // parts as they travel, one behind the other. They have at most so many bytes, in any layout, which is
    // what there are words of pieces for.
    void set_coded(uint32_t index, uint64_t most_bytes);
    // Whether what is added from now on is measured (measure.hpp).
    void set_measured(bool is_measured);
    // The first bytes of a member's newest step are ready, so many of them.
    void ready(uint32_t index, uint64_t num_bytes);

    // A member's memory for its next step, which is returned. The caller keeps it until the task is over.
    // Of an average that is unread, only what this member sums itself arrives. Throws std::invalid_argument
    // for what cannot be; then nothing of its bucket has been sent.
    int64_t add(uint32_t index, const std::byte* source, std::byte* destination, uint64_t num_bytes,
                bool is_absent, bool is_unread = false);
    // The same, for whoever does not wait: `done` is told of errors, too.
    void start(uint32_t index, const std::byte* source, std::byte* destination, uint64_t num_bytes,
               const Done& done);

    // Somebody waits for this member: whatever of its bucket is there goes now.
    void send(uint32_t index);
    // The task of its newest step, as soon as the engine has it; null when that takes longer than this: it
    // may wait for its bucket, or for members that agree on a plan. Throws std::invalid_argument where the
    // engine has refused it.
    std::shared_ptr<Task> sent(uint32_t index, std::chrono::nanoseconds timeout) const;
    // Whether its newest step is over, well or badly.
    bool is_over(uint32_t index) const;
    // Its newest step; -1 before the first.
    int64_t step(uint32_t index) const;
    // Whether that one is measured.
    bool is_measured(uint32_t index) const;
    // What is added next is of this step.
    int64_t next_step(uint32_t index) const;

    // The newest step that has begun; -1 before the first.
    int64_t latest_step() const;
    // Of each member.
    std::vector<int64_t> latest_steps() const;
    // What is added next is of this step, by member.
    void set_next_steps(const std::vector<int64_t>& steps);

    // From now on this is why tasks fail, whatever the engine says; nothing waits for its bucket any more.
    void set_reason(std::string reason);

    struct Overdue {
        uint32_t index;
        int64_t step;
        std::vector<int32_t> missing;  // the workers that it waits for, as far as anybody knows
    };
    // What was started and is not over after so long; not what an accelerator has yet to bring.
    std::vector<Overdue> overdue(std::chrono::nanoseconds age) const;

  private:
    struct Entry {
        int64_t next_step = 0;
        int64_t latest_step = -1;
        Submission submission = {};
        bool is_waiting = false;  // for its bucket, or at the gate
        std::chrono::steady_clock::time_point since = {};
        float scale = 0;
        std::shared_ptr<Task> task;
        std::shared_ptr<Pieces> pieces;
        std::optional<uint64_t> most_coded_bytes;  // given: its memory has what travels
        std::string refusal;
        Done done;
    };
    struct Buckets {
        std::vector<Bucket> buckets;
        std::vector<uint32_t> bucket_of;  // by member
        std::vector<size_t> place_of;     // in the order of the plan
    };
    struct Told {
        Done done;
        std::shared_ptr<Task> task;  // null where there is none
        std::string refusal;
    };

    // These with the lock held.
    int64_t take(uint32_t index, const std::byte* source, std::byte* destination, uint64_t num_bytes,
                 bool is_absent, bool is_unread, const Done& done, std::vector<Told>& told);
    // Whatever waits for its bucket goes now.
    void let_go(std::vector<Told>& told);
    // Follow the plan of the newest step.
    void adopt();
    // At the gate.
    void release(std::vector<uint32_t> indices, std::vector<Told>& told);
    void submit(const std::vector<uint32_t>& indices, std::vector<Told>& told);
    Submission scale_of(uint32_t index);
    const Buckets& at(int64_t step) const;
    // Without it: whoever is told may come back here.
    void tell(const std::vector<Told>& told);

    const std::shared_ptr<Engine> engine_;
    const std::shared_ptr<StepGate> gate_;
    const std::vector<Member> members_;

    mutable std::mutex mutex_;
    mutable std::condition_variable was_sent_;
    std::vector<Entry> entries_;
    std::map<int64_t, Buckets> plans_;  // by the first step that they govern
    int64_t latest_step_ = -1;
    const Buckets* current_ = nullptr;
    std::vector<std::vector<uint32_t>> waiting_;  // by bucket of the current plan
    std::vector<size_t> num_missing_;
    std::string reason_;
    bool is_measured_ = false;
};

}  // namespace legato
