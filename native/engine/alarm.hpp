// What went wrong on this member where nobody can catch it: kept until an I/O thread fails the engine for it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>

namespace legato {

class Alarm {
  public:
    // Run what may throw anything, on a thread or in a destructor that nothing may leave.
    template <typename Work>
    void guard(const Work& work) noexcept {
        try {
            work();
        } catch (const std::exception& error) {
            raise(error.what());
        } catch (...) {
            raise("an exception of no known type");
        }
    }
    // The first is kept, as far as there is room: it takes no memory, which may be what is missing.
    void raise(const char* what) noexcept {
        if (is_taken_.exchange(true)) return;
        std::memcpy(what_.data(), what, std::min(std::strlen(what), what_.size() - 1));
        is_raised_.store(true, std::memory_order_release);
    }

    bool is_raised() const noexcept { return is_raised_.load(std::memory_order_acquire); }
    const char* what() const noexcept { return what_.data(); }

  private:
    std::atomic<bool> is_taken_ = false;
    std::atomic<bool> is_raised_ = false;
    std::array<char, 256> what_{};
};

}  // namespace legato
