// Threads on which a framework goes on when an average has arrived.
//
// XLA runs whatever has been waiting for a result on the thread that announces it: a whole forward pass, if
// need be. The engine's threads must not be held up by that, so they only hand over.
#ifndef LEGATO_JAX_HAND_OVER_HPP
#define LEGATO_JAX_HAND_OVER_HPP

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace legato::jax {

class HandOver {
  public:
    using Work = std::function<void()>;

    // The one of this process, made at first use and never destroyed: XLA may still be at work when a process
    // ends.
    static HandOver& instance();

    void post(Work work);

  private:
    HandOver();
    void run();

    std::mutex mutex_;
    std::condition_variable posted_;
    std::deque<Work> queue_;
};

}  // namespace legato::jax

#endif
