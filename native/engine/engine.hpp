// One member of a job: its connections, its send queues, its sums and its I/O threads.
//
// Note: threads and locks. The user's threads submit and wait; the I/O threads do everything else, and only
// they touch the memory of tasks. Each lock guards one object: Catalog, Peers, Worker, Server, each Slot,
// Gatherings, each Gathering, each SendQueue, each IoThread's inbox, each Task's outcome, the buffer pool,
// and the engine's own state. A method takes its object's lock, decides, lets go, and then acts on others.
// Only these are taken inside one another:
//     Worker -> Task (an outcome), Pieces and Catalog,  Server -> Slot and Catalog,  Gatherings -> Gathering,
//     all four -> BufferPool.
//
// Note: how an engine ends. A failure anywhere is the failure of the whole engine: a job without a worker
// cannot sum. Whoever waits for a task then frees its memory, so nobody may be told before the I/O threads
// have let go of it:
//   1. `fail` keeps the first failure; an exception that nobody expects, on an I/O thread or in a user's
//      call, is one of this member (alarm.hpp). Worker, Server and Router refuse everything from now on.
//   2. Every I/O thread, between two turns, makes its links abandon the parts they hold: what is left of a
//      frame is copied, what is still to be received is discarded.
//   3. The last thread to do so fails the tasks.
//   4. An abort frame tells every peer, who does the same; so it also reaches those who are not connected to
//      the lost member. The one that is to blame is told too, while its link can still carry bytes: it hears
//      what the others say of it, instead of blaming them for going.
// `close` does steps 1 to 3 if tasks are under way, then sends what is queued and a goodbye on each
// connection, waits until its peer has closed it too, and stops the threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/alarm.hpp"
#include "engine/forks.hpp"
#include "engine/net/io_thread.hpp"
#include "engine/net/membership.hpp"
#include "engine/net/peer_link.hpp"
#include "engine/net/peers.hpp"
#include "engine/net/records.hpp"
#include "engine/net/traffic.hpp"
#include "engine/net/uplink.hpp"
#include "engine/protocol/catalog.hpp"
#include "engine/protocol/failure.hpp"
#include "engine/protocol/topology.hpp"
#include "engine/router.hpp"
#include "engine/server/server.hpp"
#include "engine/worker/worker.hpp"

namespace legato {

class Engine final : private Membership {
  public:
    struct Options {
        int32_t member;
        int32_t num_workers;
        int32_t num_members;
        uint32_t epoch;
        size_t num_io_threads;
        size_t chunk_bytes;
        double heartbeat_s;
        bool with_trace;
        std::vector<int32_t> hosts;  // by member; none: each has its own
        Wire wire = Wire::plain;
        int32_t num_learners = 0;  // of the workers, the last ones
    };

    // Throws std::invalid_argument for what cannot be.
    explicit Engine(const Options& options);
    ~Engine() override {
        alarm_.guard([this] { close(); });
    }

    // With the keys of each socket, unless the wire is plain.
    void attach(int32_t peer, const std::vector<int>& sockets, const std::vector<ConnectionKeys>& keys);
    // A peer on the same host, through this memory; the socket is the bell.
    void attach_shared(int32_t peer, int socket, int memory);
    void declare(Tensor tensor) { catalog_.declare(std::move(tensor)); }
    void lay_out(uint32_t tensor, int64_t from_step, std::vector<Part> parts) {
        catalog_.lay_out(tensor, from_step, std::move(parts));
    }
    void set_credit(int64_t from_step, uint64_t credit_bytes);
    // From `from_step` on, answers for these tensors wait until all sums of the step are complete here.
    void set_stage_barrier(int64_t from_step, std::vector<uint32_t> tensors) {
        server_.set_stage_barrier(from_step, std::move(tensors));
    }
    std::vector<std::shared_ptr<Task>> submit(const std::vector<Submission>& submissions);
    // More bytes of a task with pieces are ready.
    void wake(const std::shared_ptr<Task>& task);
    std::optional<Failure> failure() const;
    std::map<std::string, uint64_t> statistics() const;
    std::vector<Uplink::Flow> flows() const { return uplink_.flows(); }
    // By member.
    const std::vector<Traffic>& traffic() const { return traffic_; }
    void set_trace(int64_t first_step, int64_t last_step, size_t max_records) {
        worker_.set_trace(first_step, last_step, max_records);
    }
    std::vector<Trace::Record> take_trace() { return worker_.take_trace(); }
    void close();

    // In a child of the process that made the engine (forks.hpp) `failure` says so and `close` does nothing;
    // everything else must be asked first whether it may. Throws std::runtime_error.
    void check_process() const;

  private:
    enum class State { running, failed, closing, closed };

    void on_goodbye(int32_t peer) override;
    void on_lost(const Failure& failure) override { fail(failure, options_.member); }
    void on_abort(int32_t peer, const Failure& failure) override { fail(failure, peer); }
    void on_missed(int32_t member) override;
    void on_closed() override;

    // Run a call of the user's that sends: one that ends half-way, as without memory, ends the engine.
    template <typename Call>
    auto whole(const Call& call);
    void on_alarm();
    void check_peer(int32_t peer) const;
    PeerLink::Options link_options() const;
    IoThread& next_thread() { return *threads_[next_thread_++ % threads_.size()]; }
    struct NewLink {
        IoThread& home;
        std::unique_ptr<Link> link;
    };
    void add(int32_t peer, std::vector<NewLink> links);
    void serve_locally(const std::shared_ptr<Task>& task, size_t part);
    void fail(const Failure& failure, int32_t told_by);
    // Steps 2 and 3 of the note.
    void fail_tasks(std::vector<std::shared_ptr<Task>> tasks, const Failure& failure);
    void send_abort(const Failure& failure, int32_t told_by);
    bool is_running() const;

    const Maker maker_;
    const Options options_;
    Alarm alarm_;
    std::vector<Traffic> traffic_;  // by member
    Uplink uplink_;
    const Topology topology_;
    Catalog catalog_;
    Peers peers_;
    Worker worker_;
    Server server_;
    Router router_;

    std::mutex close_mutex_;  // a second caller waits for the first
    mutable std::mutex mutex_;
    State state_ = State::running;
    std::optional<Failure> failure_;
    size_t num_connections_ = 0;
    size_t next_thread_ = 0;
    std::condition_variable has_closed_;
    std::vector<std::unique_ptr<IoThread>> threads_;  // last: they use all the others
};

}  // namespace legato
