#include "engine/server/running_total.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/reduce.hpp"

namespace legato {

RunningTotal::RunningTotal(const Slot::Origin& origin, int64_t staleness, int32_t num_workers,
                           std::shared_ptr<BufferPool> pool)
    : Gathering(origin, num_workers, std::move(pool)), staleness_(staleness) {
    const size_t total_bytes = num_bytes_ / item_bytes(dtype_) * accumulator_item_bytes(dtype_);
    total_ = BufferPool::get(pool_, total_bytes);
    std::memset(total_.data(), 0, total_bytes);
}

void RunningTotal::put(int32_t, int64_t, uint64_t offset, const std::byte* data, uint64_t num_bytes) {
    const size_t item = item_bytes(dtype_);
    reduce(dtype_, Reduction::sum, total_.data() + offset / item * accumulator_item_bytes(dtype_), data,
           num_bytes / item);
}

std::vector<Gathering::Answer> RunningTotal::take_due() {
    const auto first_due = std::stable_partition(
        askers_.begin(), askers_.end(), [this](const Asker& asker) { return !missing(asker).empty(); });
    std::vector<Answer> due;
    if (first_due == askers_.end()) return due;
    const auto total = snapshot();
    for (auto asker = first_due; asker != askers_.end(); ++asker)
        due.push_back({std::move(*asker), total, {}});
    askers_.erase(first_due, askers_.end());
    return due;
}

// The total as it is now: it goes on changing while answers are on their way.
std::shared_ptr<const BufferPool::Buffer> RunningTotal::snapshot() const {
    auto copy = std::make_shared<BufferPool::Buffer>(BufferPool::get(pool_, num_bytes_));
    const double factor = reduction_ == Reduction::average ? 1.0 / num_workers() : 1.0;
    store(dtype_, copy->data(), total_.data(), factor, num_bytes_ / item_bytes(dtype_));
    return copy;
}

bool RunningTotal::is_over() const {
    return askers_.empty() && std::ranges::all_of(latest_, [](int64_t step) { return step == kLastStep; });
}

std::vector<int32_t> RunningTotal::missing(const Asker& asker) const {
    std::vector<int32_t> missing;
    for (int32_t worker = 0; worker < num_workers(); ++worker)
        if (latest_[static_cast<size_t>(worker)] < asker.origin.step - staleness_) missing.push_back(worker);
    return missing;
}

}  // namespace legato
