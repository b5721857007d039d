// The worker's side of a member: tasks become parts, parts start within the credit, answers come home.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/net/peers.hpp"
#include "engine/protocol/catalog.hpp"
#include "engine/protocol/frame.hpp"
#include "engine/protocol/topology.hpp"
#include "engine/worker/start_queue.hpp"
#include "engine/worker/task.hpp"
#include "engine/worker/trace.hpp"

namespace legato {

class Worker {
  public:
    using TaskPtr = std::shared_ptr<Task>;
    // Hands a part that this member serves or relays itself to its own server's side.
    using ServeLocally = std::function<void(const TaskPtr& task, size_t part)>;

    // Hands the answer to a part that this member relays to its server's side, for the others of its host.
    using PassOn = std::function<void(const TaskPtr& task, size_t part, FrameKind kind)>;

    Worker(int32_t member, uint32_t epoch, bool with_trace, const Topology& topology, Catalog& catalog,
           Peers& peers, ServeLocally serve_locally, PassOn pass_on)
        : member_(member),
          epoch_(epoch),
          topology_(topology),
          catalog_(catalog),
          peers_(peers),
          serve_locally_(std::move(serve_locally)),
          pass_on_(std::move(pass_on)),
          trace_(with_trace) {}

    // ---- the user's side, from any thread ----

    // All or none: throws std::invalid_argument for what cannot be. Nothing of them starts before all are
    // there, so that the order of equal ranks is theirs. After `abandon` the tasks have failed already.
    std::vector<TaskPtr> submit(const std::vector<Submission>& submissions);
    void set_credit(int64_t from_step, uint64_t credit_bytes);
    // More of its bytes are ready.
    void wake(const TaskPtr& task);

    void set_trace(int64_t first_step, int64_t last_step, size_t max_records);
    std::vector<Trace::Record> take_trace();

    struct Counters {
        size_t num_tasks;
        uint64_t in_flight_bytes;
        uint64_t peak_in_flight_bytes;
    };
    Counters counters() const;

    // ---- the wire's side, on I/O threads ----

    // Where this chunk of a sum belongs, or null when nobody wants it any more. Throws ProtocolError when it
    // is not the next of a part that waits for it, or another connection brings the part. `part` is the
    // header's part in its layout.
    std::byte* accept_sum(const Header& header, size_t part);
    void deliver_sum(const Header& header, size_t part);
    void deliver_acknowledge(const Header& header, size_t part);
    void deliver_late(const Header& header, std::vector<int32_t> missing);
    // The answer to this part, which is on its way, is without these workers.
    void deliver_without(const Header& header, size_t part, const std::vector<int32_t>& workers);
    // What its server says of the complete sum of a part. One that nobody here has asked for is ignored.
    void deliver_measure(const Header& header, size_t part, const Measure& measure);
    void take_measure(const TaskPtr& task, size_t part, const Measure& measure);
    // The part's bytes are handed over.
    void on_sent(const TaskPtr& task, size_t part);
    // Encode a part and put it on its way.
    void send_encoded(const TaskPtr& task, size_t part);
    // The part has its answer, and nobody else needs its memory.
    void finish(const TaskPtr& task, size_t part);

    // Whether a part still waits for that member's answer.
    bool needs(int32_t member) const;
    // Take no more tasks and let go of those under way, which the caller then fails.
    std::vector<TaskPtr> abandon(const Failure& reason);

  private:
    struct Record {
        TaskPtr task;  // the one under way, if any
        int64_t latest_step = -1;
        std::shared_ptr<CodingMemory> memory;  // of an encoded tensor
    };

    void check(const Submission& submission, const Catalog::Entry& entry) const;
    void check_measured(const Tensor& tensor, const Layout& layout) const;
    // Those below are called with the lock held.
    void check_turns(const std::vector<Submission>& submissions,
                     const std::vector<Catalog::Entry>& entries) const;
    // Whether there is anything to do for it.
    bool begin(const TaskPtr& task);
    void make_ready(const TaskPtr& task);
    // Parts whose bytes are ready.
    void offer(const TaskPtr& task);
    std::vector<StartQueue::ReadyPart> start_ready();
    const TaskPtr& task_of(const Header& header, size_t part, bool is_receiving) const;
    // A part or a measure has come, with the lock; when it was the last, the task is over.
    void count_down(const TaskPtr& task, std::unique_lock<std::mutex> lock);
    // These without.
    void take_answer(const TaskPtr& task, size_t part, FrameKind kind);
    void send(const std::vector<StartQueue::ReadyPart>& started);

    const int32_t member_;
    const uint32_t epoch_;
    const Topology& topology_;
    Catalog& catalog_;
    Peers& peers_;
    const ServeLocally serve_locally_;
    const PassOn pass_on_;
    const std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();

    mutable std::mutex mutex_;
    std::unordered_map<uint32_t, Record> records_;  // by tensor
    size_t num_tasks_ = 0;
    uint64_t next_sequence_ = 0;
    StartQueue queue_;
    Trace trace_;
    std::optional<Failure> abandoned_;
};

}  // namespace legato
