// What happened to each part, in the order in which the worker handled it, in the steps that are wanted and
// up to a number of records. Off is a window that no step is in: one comparison.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
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

    explicit Trace(bool is_on) {
        if (is_on) set_window(0, std::numeric_limits<int64_t>::max(), std::numeric_limits<size_t>::max());
    }

    void set_window(int64_t first_step, int64_t last_step, size_t max_records) {
        first_step_ = max_records ? first_step : std::numeric_limits<int64_t>::max();
        last_step_ = last_step;
        max_records_ = max_records;
    }
    void add(TraceEvent what, uint32_t tensor, int64_t step, uint64_t offset, uint64_t length) {
        if (step < first_step_ || step > last_step_ || records_.size() >= max_records_) return;
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        records_.push_back({std::chrono::nanoseconds(now).count(), what, tensor, step, offset, length});
    }
    std::vector<Record> take() { return std::exchange(records_, {}); }

  private:
    int64_t first_step_ = std::numeric_limits<int64_t>::max();
    int64_t last_step_ = 0;
    size_t max_records_ = 0;
    std::vector<Record> records_;
};

}  // namespace legato
