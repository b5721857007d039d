// Which ready parts may start now: the credit window. Pure: no lock, no clock, no memory of anybody else's.
//
// A part starts in the order (rank, step, arrival, offset) while the bytes in flight stay within the
// credit, or when nothing is in flight. A smaller, less urgent part never overtakes one that has to wait.
//
// Note: when credit comes back. In flight is what has started and is not yet handed over to the network. It
// must not depend on other workers: if credit came back with the sum, one worker could spend it all on parts
// that a second has yet to start, the second on others, and both would wait for ever. They need not even
// submit in different orders: a part that is ready a moment later on one of them is enough.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/worker/task.hpp"

namespace legato {

class StartQueue {
  public:
    struct ReadyPart {
        std::shared_ptr<Task> task;
        size_t part;

        uint64_t length() const { return task->push_bytes(part); }
    };

    // From `from_step` on; 0 is no limit.
    void set_credit(int64_t from_step, uint64_t credit_bytes);
    void add(std::shared_ptr<Task> task, size_t part);
    // The next part to start, which is then in flight.
    std::optional<ReadyPart> start_next();
    void give_back(uint64_t num_bytes) { in_flight_bytes_ -= num_bytes; }
    void clear() { ready_.clear(); }

    uint64_t in_flight_bytes() const { return in_flight_bytes_; }
    uint64_t peak_in_flight_bytes() const { return peak_in_flight_bytes_; }

  private:
    struct Credit {
        int64_t from_step;
        uint64_t num_bytes;
    };

    uint64_t credit_at(int64_t step) const;

    std::vector<ReadyPart> ready_;  // a heap
    std::vector<Credit> credits_;   // by from_step
    int64_t latest_step_ = -1;
    uint64_t in_flight_bytes_ = 0;
    uint64_t peak_in_flight_bytes_ = 0;
};

}  // namespace legato
