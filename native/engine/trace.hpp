// What happened to each part, in the order in which the worker handled it.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace legato {

enum class TraceEvent : uint8_t { ready, start, sent, finish, done };

class Trace {
  public:
    struct Record {
        int64_t ns;  // monotonic
        TraceEvent what;
        uint32_t tensor;
        int64_t step;
        uint64_t offset;
        uint64_t length;
    };

    explicit Trace(bool is_on) : is_on_(is_on) {}

    void add(TraceEvent what, uint32_t tensor, int64_t step, uint64_t offset, uint64_t length) {
        if (!is_on_) return;
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        records_.push_back({std::chrono::nanoseconds(now).count(), what, tensor, step, offset, length});
    }
    std::vector<Record> take() { return std::exchange(records_, {}); }

  private:
    const bool is_on_;
    std::vector<Record> records_;
};

}  // namespace legato
