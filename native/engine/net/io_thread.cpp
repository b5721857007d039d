#include "engine/net/io_thread.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string>
#include <system_error>
#include <utility>

#include "engine/net/placement.hpp"

namespace legato {

namespace {

using namespace std::chrono_literals;

// How long a thread copies before its neighbours may: shorter than a socket's buffer lasts.
constexpr auto kBusy = 250us;

Descriptor checked(int fd, const char* what) {
    if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
    return Descriptor(fd);
}

// What epoll hands back: a link's address, or that of one of the thread's own descriptors.
void watch(const Descriptor& epoll, int fd, uint32_t events, void* data) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = data;
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

Descriptor make_timer(std::chrono::nanoseconds tick) {
    Descriptor timer = checked(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd_create");
    itimerspec every{};
    every.it_interval.tv_sec = tick.count() / 1'000'000'000;
    every.it_interval.tv_nsec = tick.count() % 1'000'000'000;
    every.it_value = every.it_interval;
    if (timerfd_settime(timer.get(), 0, &every, nullptr) != 0)
        throw std::system_error(errno, std::generic_category(), "timerfd_settime");
    return timer;
}

// How often it has fired since the last time.
uint64_t drain(const Descriptor& counter) {
    uint64_t count = 0;
    return ::read(counter.get(), &count, sizeof count) == sizeof count ? count : 0;
}

class WithoutSignals {
  public:
    WithoutSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

// The interpreter's threads handle signals, never ours.
std::thread start_without_signals(std::function<void()> run, size_t index) {
    const WithoutSignals while_it_starts;
    std::thread thread(std::move(run));
    pthread_setname_np(thread.native_handle(), ("legato-io-" + std::to_string(index)).c_str());
    return thread;
}

}  // namespace

IoThread::IoThread(size_t index, std::chrono::nanoseconds tick, std::function<void()> on_tick, Alarm& alarm,
                   std::function<void()> on_alarm)
    : on_tick_(std::move(on_tick)),
      alarm_(alarm),
      on_alarm_(std::move(on_alarm)),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wakeup_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      timer_(make_timer(tick)) {
    watch(epoll_, wakeup_.get(), EPOLLIN, &wakeup_);
    watch(epoll_, timer_.get(), EPOLLIN, &timer_);
    thread_ = start_without_signals([this] { run(); }, index);
}

IoThread::~IoThread() { stop(); }

void IoThread::stop() {
    if (!thread_.joinable()) return;
    tell([this] { is_stopping_ = true; });
    thread_.join();
    const std::lock_guard lock(mutex_);
    is_asleep_ = false;  // so that nobody writes to the eventfd any more
    for (Descriptor* descriptor : {&epoll_, &wakeup_, &timer_}) descriptor->reset();
}

template <typename Change>
void IoThread::tell(const Change& change) {
    bool was_asleep;
    {
        const std::lock_guard lock(mutex_);
        change();
        was_asleep = std::exchange(is_asleep_, false);
    }
    if (was_asleep) eventfd_write(wakeup_.get(), 1);
}

void IoThread::wake(std::span<Link* const> links) {
    tell([&] { woken_.insert(woken_.end(), links.begin(), links.end()); });
}

void IoThread::post(std::function<void()> job) {
    tell([&] { jobs_.push_back(std::move(job)); });
}

void IoThread::add(Link& link) {
    post([this, &link] {
        links_.push_back(&link);
        for (auto* list : {&turns_, &serving_})
            list->reserve(links_.size());  // so that a turn costs no memory
        if (link.descriptor() >= 0) {
            (link.is_neighbour() ? has_neighbours_ : has_connections_) = true;
            if (has_neighbours_ && has_connections_ && !shares_core_) shares_core_ = take_short_slices();
            stay_near_network(link.descriptor());
            // Edge-triggered: a link remembers what it may still read and write, and epoll is never told
            // again.
            watch(epoll_, link.descriptor(), link.events() | EPOLLET, &link);
        }
        give_turn_to(link);
    });
}

void IoThread::run() noexcept {
    take_precedence();
    while (true) {
        const bool is_idle = !run_inbox() && turns_.empty();
        if (is_over_) break;
        wait_for_events(is_idle);
        give_turns();
        if (alarm_.is_raised()) alarm_.guard(on_alarm_);
        share_core();
    }
}

bool IoThread::run_inbox() {
    std::vector<std::function<void()>> jobs;
    std::vector<Link*> woken;
    {
        const std::lock_guard lock(mutex_);
        jobs.swap(jobs_);
        woken.swap(woken_);
        is_over_ = is_stopping_;
        is_asleep_ = jobs.empty() && woken.empty() && turns_.empty() && !is_over_;
    }
    for (Link* link : woken) give_turn_to(*link);
    for (const auto& job : jobs) alarm_.guard(job);
    return !jobs.empty() || !woken.empty();
}

void IoThread::wait_for_events(bool is_idle) {
    std::array<epoll_event, 64> events;
    const int num_events =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), is_idle ? -1 : 0);
    if (is_idle) {
        const std::lock_guard lock(mutex_);
        is_asleep_ = false;
    }
    for (int i = 0; i < num_events; ++i) {
        const epoll_event& event = events[static_cast<size_t>(i)];
        if (event.data.ptr == &wakeup_) {
            drain(wakeup_);
        } else if (event.data.ptr == &timer_) {
            on_timer();
        } else {
            auto& link = *static_cast<Link*>(event.data.ptr);
            alarm_.guard([&] { link.notice(event.events); });
            give_turn_to(link);
        }
    }
}

void IoThread::give_turns() {
    serving_.swap(turns_);
    bool has_closed = false;
    for (Link* link : serving_) {
        link->has_turn_ = false;
        bool has_more = true;  // as after an exception: who ends has to tell its peers
        alarm_.guard([&] { has_more = !link->is_closed() && link->service(); });
        if (has_more) give_turn_to(*link);
        has_closed = has_closed || link->is_closed();
    }
    serving_.clear();
    if (has_closed) remove_closed_links();
}

void IoThread::share_core() {
    // Workers of one host that share cores all copy as fast as memory allows when a step begins. Did each of
    // them so for a whole slice of the kernel's, sockets of the others would run dry.
    if (!shares_core_ || turns_.empty()) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - yielded_at_ < kBusy) return;
    yielded_at_ = now;
    sched_yield();
}

void IoThread::on_timer() {
    // However many ticks this thread has slept through, its peers had one chance to be heard.
    drain(timer_);
    for (Link* link : links_) alarm_.guard([&] { link->tick(); });
    remove_closed_links();
    alarm_.guard(on_tick_);
}

void IoThread::give_turn_to(Link& link) {
    if (std::exchange(link.has_turn_, true)) return;
    turns_.push_back(&link);
}

void IoThread::remove_closed_links() {
    const auto is_closed = [](const Link* link) { return link->is_closed(); };
    std::erase_if(links_, is_closed);
    std::erase_if(turns_, is_closed);
}

}  // namespace legato
