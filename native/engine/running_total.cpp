#include "engine/running_total.hpp"

#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/reduce.hpp"

namespace legato {

RunningTotal::RunningTotal(const Slot::Origin& origin, int64_t staleness, int32_t num_workers,
                           const std::shared_ptr<BufferPool>& pool)
    : num_bytes_(origin.part.length),
      dtype_(origin.dtype),
      reduction_(origin.reduction),
      staleness_(staleness),
      progress_(static_cast<size_t>(num_workers), 0),
      latest_(static_cast<size_t>(num_workers), -1) {
    const size_t total_bytes = num_bytes_ / item_bytes(dtype_) * accumulator_item_bytes(dtype_);
    total_ = BufferPool::get(pool, total_bytes);
    std::memset(total_.data(), 0, total_bytes);
}

bool RunningTotal::add(int32_t worker, const std::byte* data, uint64_t num_bytes) {
    uint64_t& progress = progress_[static_cast<size_t>(worker)];
    const size_t item = item_bytes(dtype_);
    reduce(dtype_, Reduction::sum, total_.data() + progress / item * accumulator_item_bytes(dtype_), data,
           num_bytes / item);
    progress += num_bytes;
    return progress == num_bytes_;
}

void RunningTotal::ask(Asker asker) {
    progress_[static_cast<size_t>(asker.worker)] = 0;
    latest_[static_cast<size_t>(asker.worker)] = asker.origin.step;
    askers_.push_back(std::move(asker));
}

std::vector<RunningTotal::Asker> RunningTotal::take_due() {
    const auto first_due = std::stable_partition(
        askers_.begin(), askers_.end(), [this](const Asker& asker) { return !missing(asker).empty(); });
    std::vector<Asker> due(std::make_move_iterator(first_due), std::make_move_iterator(askers_.end()));
    askers_.erase(first_due, askers_.end());
    return due;
}

void RunningTotal::write(std::byte* output) const {
    const auto num_workers = static_cast<double>(latest_.size());
    const double factor = reduction_ == Reduction::average ? 1.0 / num_workers : 1.0;
    store(dtype_, output, total_.data(), factor, num_bytes_ / item_bytes(dtype_));
}

bool RunningTotal::is_over() const {
    return askers_.empty() && std::ranges::all_of(latest_, [](int64_t step) { return step == kLastStep; });
}

std::vector<int32_t> RunningTotal::missing(const Asker& asker) const {
    std::vector<int32_t> missing;
    for (int32_t worker = 0; worker < static_cast<int32_t>(latest_.size()); ++worker)
        if (is_missing(worker, asker)) missing.push_back(worker);
    return missing;
}

}  // namespace legato
