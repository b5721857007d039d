#include "engine/server/quorum.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/reduce.hpp"

namespace legato {

Quorum::Step& Quorum::at(int64_t step) {
    Step& found = steps_[step];
    found.contributions.resize(latest_.size());
    return found;
}

void Quorum::put(int32_t worker, int64_t step, uint64_t offset, const std::byte* data, uint64_t num_bytes) {
    Step& found = at(step);
    if (found.is_closed) return;
    BufferPool::Buffer& own = found.contributions[static_cast<size_t>(worker)];
    if (!own) own = BufferPool::get(pool_, num_bytes_);
    std::memcpy(own.data() + offset, data, num_bytes);
}

void Quorum::come(int32_t worker, int64_t step) { at(step).come.push_back(worker); }

std::vector<Gathering::Answer> Quorum::take_due() {
    for (auto& [number, step] : steps_)
        if (!step.is_closed && can_close(number, step)) close(step);
    std::vector<Answer> due;
    std::erase_if(askers_, [&](Asker& asker) {
        const Step& step = steps_.at(asker.origin.step);
        if (!step.is_closed) return false;
        due.push_back({std::move(asker), step.sum, step.without});
        return true;
    });
    std::erase_if(steps_, [this](const auto& entry) { return entry.second.come.size() == latest_.size(); });
    return due;
}

std::vector<int32_t> Quorum::missing(const Asker& asker) const {
    return absentees(steps_.at(asker.origin.step));
}

bool Quorum::can_close(int64_t number, const Step& step) const {
    return std::ranges::ssize(step.come) >= num_workers() - backups_ &&
           std::ranges::all_of(absentees(step), [&](int32_t worker) {
               return latest_[static_cast<size_t>(worker)] >= number - kMaxBehind;
           });
}

// In the order of ranks, so that a sum does not depend on who was first. A contribution that has not come to
// its end is dropped with the rest.
void Quorum::close(Step& step) const {
    step.is_closed = true;
    step.without = absentees(step);
    std::ranges::sort(step.come);
    const size_t num_items = num_bytes_ / item_bytes(dtype_);
    const BufferPool::Buffer total = BufferPool::get(pool_, num_items * accumulator_item_bytes(dtype_));
    bool is_empty = true;
    for (const int32_t worker : step.come) {
        const BufferPool::Buffer& own = step.contributions[static_cast<size_t>(worker)];
        if (!own) continue;
        if (is_empty)
            load(dtype_, total.data(), own.data(), num_items);
        else
            reduce(dtype_, reduction_, total.data(), own.data(), num_items);
        is_empty = false;
    }
    for (BufferPool::Buffer& own : step.contributions) own = {};
    if (is_empty) return;
    auto sum = std::make_shared<BufferPool::Buffer>(BufferPool::get(pool_, num_bytes_));
    const double factor =
        reduction_ == Reduction::average ? 1.0 / static_cast<double>(step.come.size()) : 1.0;
    store(dtype_, sum->data(), total.data(), factor, num_items);
    step.sum = std::move(sum);
}

std::vector<int32_t> Quorum::absentees(const Step& step) const {
    std::vector<int32_t> absentees;
    for (int32_t worker = 0; worker < num_workers(); ++worker)
        if (std::ranges::count(step.come, worker) == 0) absentees.push_back(worker);
    return absentees;
}

}  // namespace legato
