// Sees when a stream of an accelerator has set a word in the host's memory, and acts on it.
//
// Note: words, not host functions. What the driver calls when a stream has come so far (cuLaunchHostFunc)
// needs no thread of ours; but the 57th that is queued behind work that is not done holds whoever queues it
// until the first has run (H200, PyTorch 2.11). So a thread that trained, and copied gradients in 57 pieces
// or more, waited for its accelerator in every backward pass. A stream takes 1,020 words.
//
// Events have no such limit either, but asking for one is a call to the driver: a thread that launches a
// kernel for the first time may hold the driver until a word of ours is set, and this thread is part of how
// that comes about. So it looks at memory, and sleeps in between while something is on its way.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace legato {

class WordWatch {
  public:
    WordWatch() = default;
    ~WordWatch() { stop(); }
    WordWatch(const WordWatch&) = delete;
    WordWatch& operator=(const WordWatch&) = delete;

    // Acts on the watch's thread when the word has reached the mark, as marks go round. Words are looked at
    // in the order in which they are given here: one stream sets them in that order. An action does not throw
    // or wait.
    void after(const uint32_t* word, uint32_t mark, std::function<void()> action);
    // Waits for the action that is under way; what has not begun never does.
    void stop();

  private:
    struct Awaited {
        const uint32_t* word;
        uint32_t mark;
        std::function<void()> action;
    };

    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Awaited> awaited_;
    bool is_stopped_ = false;
    std::thread thread_;  // since the first word
};

}  // namespace legato
