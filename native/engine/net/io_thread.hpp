// A thread that gives its links their turns. It never takes the GIL and never blocks but in epoll.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/alarm.hpp"
#include "engine/net/descriptor.hpp"
#include "engine/net/link.hpp"

namespace legato {

class IoThread final : public LinkWaker {
  public:
    // `on_tick` and what links do at a tick run every `tick`, on this thread. Whatever they, links or jobs
    // throw raises the alarm, and `on_alarm` runs between two turns while it is raised.
    IoThread(size_t index, std::chrono::nanoseconds tick, std::function<void()> on_tick, Alarm& alarm,
             std::function<void()> on_alarm);
    ~IoThread() override;

    void wake(std::span<Link* const> links) override;
    // Run it on this thread, between two turns.
    void post(std::function<void()> job);
    // From now on the link, which outlives this thread, belongs here.
    void add(Link& link);

    // Run what has been posted, end the thread and close what it holds. Later calls are ignored.
    void stop();

    // Only on this thread.
    const std::vector<Link*>& links() const { return links_; }

  private:
    void run() noexcept;
    // Change what the lock guards, and wake the thread for it.
    template <typename Change>
    void tell(const Change& change);
    // False when there is nothing to do but wait.
    bool run_inbox();
    void wait_for_events(bool is_idle);
    void give_turns();
    // Let the neighbours' threads have the core for a moment, when this one has copied for a while.
    void share_core();
    void on_timer();
    void give_turn_to(Link& link);
    void remove_closed_links();

    const std::function<void()> on_tick_;
    Alarm& alarm_;
    const std::function<void()> on_alarm_;
    Descriptor epoll_;
    Descriptor wakeup_;
    Descriptor timer_;

    std::mutex mutex_;
    std::vector<std::function<void()>> jobs_;
    std::vector<Link*> woken_;
    bool is_asleep_ = false;  // only then does it need the eventfd
    bool is_stopping_ = false;

    bool is_over_ = false;
    std::vector<Link*> links_;
    bool has_neighbours_ = false;
    bool has_connections_ = false;  // to other hosts
    bool shares_core_ = false;
    std::chrono::steady_clock::time_point yielded_at_;
    std::vector<Link*> turns_;    // who is next
    std::vector<Link*> serving_;  // whose turn it is
    std::thread thread_;          // last: it uses all the others
};

}  // namespace legato
