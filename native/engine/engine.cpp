#include "engine/engine.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "engine/net/connection.hpp"
#include "engine/net/local_link.hpp"
#include "engine/net/shared_link.hpp"
#include "engine/net/socket.hpp"

namespace legato {

namespace {

constexpr size_t kChunkGrain = 64;
constexpr size_t kMaxChunkBytes = 1 << 24;

const Engine::Options& checked(const Engine::Options& options) {
    const auto require = [](bool is_so, const char* what) {
        if (!is_so) throw std::invalid_argument(what);
    };
    require(options.num_workers >= 1 && options.num_members >= options.num_workers &&
                options.num_members <= UINT16_MAX,
            "there must be 1 <= num_workers <= num_members <= 65535");
    require(options.num_learners >= 0 && options.num_learners < options.num_workers,
            "num_learners must be 0 or more, and fewer than num_workers");
    require(options.member >= 0 && options.member < options.num_members, "member must be below num_members");
    require(options.num_io_threads >= 1 && options.num_io_threads <= 64, "num_io_threads must be 1 to 64");
    require(options.chunk_bytes >= kChunkGrain && options.chunk_bytes % kChunkGrain == 0 &&
                options.chunk_bytes <= kMaxChunkBytes,
            "chunk_bytes must be a multiple of 64, up to 16 MiB");
    require(options.heartbeat_s > 0, "heartbeat_s must be positive");
    return options;
}

std::chrono::nanoseconds tick_of(const Engine::Options& options) {
    return std::chrono::nanoseconds(static_cast<int64_t>(options.heartbeat_s / 5 * 1e9));
}

}  // namespace

Engine::Engine(const Options& options)
    : options_(checked(options)),
      traffic_(static_cast<size_t>(options.num_members)),
      topology_(options.num_workers, options.num_members, options.hosts, options.num_learners),
      catalog_(options.num_workers, options.num_members),
      peers_(options.num_members),
      worker_(
          options.member, options.epoch, options.with_trace, topology_, catalog_, peers_,
          [this](const auto& task, size_t part) { serve_locally(task, part); },
          [this](const auto& task, size_t part, FrameKind kind) { server_.pass_on(task, part, kind); }),
      server_({options.member, options.epoch, options.chunk_bytes}, topology_, catalog_, peers_, worker_,
              alarm_),
      router_(options.member, topology_, catalog_, peers_, worker_, server_, *this) {
    const auto tick = tick_of(options_);
    for (size_t i = 0; i < options_.num_io_threads; ++i) {
        std::function<void()> on_tick = [] {};
        if (i == 0) on_tick = [this, tick] { server_.tell_late(tick); };
        threads_.push_back(
            std::make_unique<IoThread>(i, tick, std::move(on_tick), alarm_, [this] { on_alarm(); }));
    }
    if (options_.member >= options_.num_workers) return;
    std::vector<std::unique_ptr<Link>> links;
    for (const auto& thread : threads_) {
        links.push_back(std::make_unique<LocalLink>(*thread, options_.member));
        thread->add(*links.back());
    }
    peers_.add(options_.member, std::move(links));
}

void Engine::attach(int32_t peer, const std::vector<int>& sockets, const std::vector<ConnectionKeys>& keys) {
    std::vector<Descriptor> descriptors;  // ours from here on, whatever happens
    for (const int fd : sockets) descriptors.emplace_back(fd);
    check_peer(peer);
    if (sockets.empty()) throw std::invalid_argument("no sockets to member " + std::to_string(peer));
    if (options_.wire != Wire::plain && keys.size() != sockets.size())
        throw std::invalid_argument("every socket to member " + std::to_string(peer) + " needs its keys");
    for (const Descriptor& descriptor : descriptors) prepare(descriptor);
    std::vector<NewLink> links;
    Membership& membership = *this;
    Traffic& traffic = traffic_[static_cast<size_t>(peer)];
    for (size_t i = 0; i < descriptors.size(); ++i) {
        IoThread& home = next_thread();
        Seals seals = options_.wire == Wire::plain ? Seals{} : make_seals(options_.wire, keys[i]);
        links.push_back(
            {home, std::make_unique<Connection>(home, peer, std::move(descriptors[i]), link_options(),
                                                router_, membership, traffic, uplink_, std::move(seals))});
    }
    add(peer, std::move(links));
}

void Engine::attach_shared(int32_t peer, int socket, int memory) {
    Descriptor bell(socket);  // ours from here on, whatever happens
    const Descriptor file(memory);
    check_peer(peer);
    IoThread& home = next_thread();
    std::vector<NewLink> links;
    Membership& membership = *this;
    links.push_back(
        {home, std::make_unique<SharedLink>(home, peer, std::move(bell), SharedMemory(file), link_options(),
                                            router_, membership, traffic_[static_cast<size_t>(peer)])});
    add(peer, std::move(links));
}

void Engine::check_peer(int32_t peer) const {
    if (peer < 0 || peer >= options_.num_members || peer == options_.member)
        throw std::invalid_argument("no peer: member " + std::to_string(peer));
    if (!is_running()) throw std::runtime_error("the engine is closed or has failed");
}

PeerLink::Options Engine::link_options() const {
    return {static_cast<uint16_t>(options_.member), options_.epoch, options_.chunk_bytes,
            topology_.num_hosts(), options_.heartbeat_s};
}

void Engine::add(int32_t peer, std::vector<NewLink> links) {
    std::vector<std::pair<IoThread*, Link*>> homes;
    std::vector<std::unique_ptr<Link>> owned;
    for (NewLink& link : links) {
        homes.emplace_back(&link.home, link.link.get());
        owned.push_back(std::move(link.link));
    }
    peers_.add(peer, std::move(owned));
    {
        const std::lock_guard lock(mutex_);
        num_connections_ += homes.size();
    }
    for (const auto& [thread, link] : homes) thread->add(*link);
}

template <typename Call>
auto Engine::whole(const Call& call) {
    try {
        return call();
    } catch (const std::invalid_argument&) {
        throw;  // refused before it began
    } catch (const std::exception& error) {
        alarm_.raise(error.what());
        throw;
    }
}

void Engine::set_credit(int64_t from_step, uint64_t credit_bytes) {
    whole([&] { worker_.set_credit(from_step, credit_bytes); });
}

std::vector<std::shared_ptr<Task>> Engine::submit(const std::vector<Submission>& submissions) {
    if (options_.member >= options_.num_workers)
        throw std::invalid_argument("member " + std::to_string(options_.member) +
                                    " is a server, not a worker");
    auto tasks = whole([&] { return worker_.submit(submissions); });
    for (const int32_t gone : peers_.departed())
        if (worker_.needs(gone)) on_missed(gone);
    return tasks;
}

void Engine::wake(const std::shared_ptr<Task>& task) {
    whole([&] { worker_.wake(task); });
}

void Engine::serve_locally(const std::shared_ptr<Task>& task, size_t part) {
    server_.add_local(task, part);
    for (const int32_t gone : peers_.departed())
        if (server_.needs(gone)) on_missed(gone);
}

void Engine::check_process() const {
    if (!maker_.is_this_process()) throw std::runtime_error(kInherited);
}

std::optional<Failure> Engine::failure() const {
    if (!maker_.is_this_process()) return Failure{FailureKind::closed, -1, -1, -1, kInherited};
    const std::lock_guard lock(mutex_);
    return failure_;
}

std::map<std::string, uint64_t> Engine::statistics() const {
    const Worker::Counters counters = worker_.counters();
    const auto total = [this](std::atomic<uint64_t> Traffic::* counter) {
        uint64_t sum = 0;
        for (const Traffic& each : traffic_) sum += each.*counter;
        return sum;
    };
    const std::lock_guard lock(mutex_);
    return {
        {"bytes_sent", total(&Traffic::bytes_sent)},
        {"bytes_received", total(&Traffic::bytes_received)},
        {"frames_sent", total(&Traffic::frames_sent)},
        {"frames_received", total(&Traffic::frames_received)},
        {"bytes_shared", total(&Traffic::bytes_shared_sent) + total(&Traffic::bytes_shared_received)},
        {"slots", server_.num_slots()},
        {"slot_bytes", server_.num_buffer_bytes()},
        {"handles", counters.num_tasks},
        {"in_flight_bytes", counters.in_flight_bytes},
        {"peak_in_flight_bytes", counters.peak_in_flight_bytes},
        {"connections", num_connections_},
        {"threads", state_ == State::closed ? 0 : threads_.size()},
    };
}

void Engine::close() {
    if (!maker_.is_this_process()) return;
    const std::lock_guard closing(close_mutex_);
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::closed) return;
        state_ = State::closing;
    }
    const Failure closed{FailureKind::closed, options_.member, -1, -1, "the engine was closed"};
    auto tasks = worker_.abandon(closed);
    server_.abandon();
    router_.abandon();
    if (!tasks.empty()) fail_tasks(std::move(tasks), closed);
    const auto on_each_link = [this](void (Link::*action)()) {
        for (const auto& thread : threads_)
            thread->post([&thread = *thread, action] {
                for (Link* link : thread.links()) (link->*action)();
            });
    };
    on_each_link(&Link::leave);
    {
        std::unique_lock lock(mutex_);
        has_closed_.wait_for(lock, 5 * tick_of(options_), [this] { return num_connections_ == 0; });
    }
    on_each_link(&Link::close);
    for (const auto& thread : threads_) thread->stop();
    const std::lock_guard lock(mutex_);
    state_ = State::closed;
}

void Engine::on_goodbye(int32_t peer) {
    if (peers_.note_goodbye(peer) && (worker_.needs(peer) || server_.needs(peer))) on_missed(peer);
}

void Engine::on_missed(int32_t member) {
    fail({FailureKind::peer_lost, member, -1, -1, "member " + std::to_string(member) + " has left"}, member);
}

void Engine::on_alarm() {
    if (!is_running()) return;
    const std::string who = "member " + std::to_string(options_.member);
    fail({FailureKind::internal, options_.member, -1, -1, who + ": " + alarm_.what()}, options_.member);
}

void Engine::on_closed() {
    const std::lock_guard lock(mutex_);
    --num_connections_;
    has_closed_.notify_all();
}

void Engine::fail(const Failure& failure, int32_t told_by) {
    {
        const std::lock_guard lock(mutex_);
        if (state_ != State::running) return;
        failure_ = failure;
        state_ = State::failed;
    }
    router_.abandon();
    server_.abandon();
    fail_tasks(worker_.abandon(failure), failure);
    send_abort(failure, told_by);
}

void Engine::fail_tasks(std::vector<std::shared_ptr<Task>> tasks, const Failure& failure) {
    struct Quiescence {
        std::atomic<size_t> num_threads_left;
        std::vector<std::shared_ptr<Task>> tasks;
        Failure failure;
    };
    const auto quiescence = std::make_shared<Quiescence>(threads_.size(), std::move(tasks), failure);
    for (const auto& thread : threads_)
        thread->post([quiescence, &thread = *thread] {
            for (Link* link : thread.links()) link->abandon();
            if (--quiescence->num_threads_left > 0) return;
            for (const auto& task : quiescence->tasks) task->fail(quiescence->failure);
        });
}

void Engine::send_abort(const Failure& failure, int32_t told_by) {
    ControlFrame frame;
    frame.header.kind = FrameKind::abort;
    frame.header.flags = static_cast<uint8_t>(failure.kind);
    frame.header.sender = static_cast<uint16_t>(options_.member);
    frame.header.epoch = options_.epoch;
    frame.header.part_offset = static_cast<uint64_t>(static_cast<int64_t>(failure.rank));
    frame.header.tensor = static_cast<uint32_t>(failure.tensor);
    frame.header.step = failure.step;
    frame.header.payload_bytes =
        static_cast<uint32_t>(std::min<size_t>(failure.message.size(), kMaxControlBytes));
    const auto* words = reinterpret_cast<const std::byte*>(failure.message.data());
    frame.payload.assign(words, words + frame.header.payload_bytes);
    for (const int32_t peer : peers_.present())
        if (peer != options_.member && peer != told_by) peers_.send(peer, frame);
}

bool Engine::is_running() const {
    const std::lock_guard lock(mutex_);
    return state_ == State::running;
}

}  // namespace legato
