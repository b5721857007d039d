#include "engine/worker/task.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/reduce.hpp"

namespace legato {

Task::Task(const Submission& submission, const Tensor& tensor, std::shared_ptr<const Layout> layout,
           int32_t worker, uint64_t sequence)
    : Submission(submission),
      declared(tensor),
      layout(std::move(layout)),
      sequence(sequence),
      worker_(worker) {
    uint64_t coded_bytes = 0;
    parts.reserve(this->layout->parts().size());
    for (const Part& part : this->layout->parts()) {
        if (is_coded) {
            coded_offsets_.push_back(coded_bytes);
            coded_bytes += declared.coding.push_bytes(part);
        }
        const bool has_share = part.contributes(worker) && part.length > 0;
        parts.push_back({has_share ? PartState::waiting : PartState::finished});
        has_arrived_.push_back(!has_share);
        num_unfinished += has_share;
        num_unmeasured_ += has_share;
    }
    advance();
    if (!is_measured) return;
    num_unfinished += num_unmeasured_;
    measures_.resize(parts.size());
}

Task::Extent Task::extent(size_t part) const {
    const Part& shape = layout->parts()[part];
    if (is_coded) return {coded_offsets_[part], push_bytes(part)};
    return {shape.offset, shape.length};
}

void Task::encode(size_t part, std::byte* output) const {
    if (is_coded) {
        const auto [offset, length] = extent(part);
        std::memcpy(output, source.at(offset), length);
        return;
    }
    const Part& shape = layout->parts()[part];
    encode_contribution(declared.coding, *memory, output, source.at(shape.offset),
                        shape.offset / sizeof(float), shape.length / sizeof(float),
                        context(part, static_cast<uint32_t>(worker_)));
}

void Task::decode(size_t part, const std::byte* input) const {
    if (is_coded) {
        const auto [offset, length] = extent(part);
        std::memcpy(destination.at(offset), input, length);
        return;
    }
    const Part& shape = layout->parts()[part];
    const size_t num_items = shape.length / sizeof(float);
    const auto num_workers = static_cast<uint32_t>(layout->num_workers());
    declared.coding.pull->decode(destination.at(shape.offset), input, num_items, context(part, num_workers));
    // What travels by an agreed scale comes back as an average.
    if (declared.coding.has_agreed_scale && reduction == Reduction::sum)
        legato::scale(DType::f32, destination.at(shape.offset), num_workers, num_items);
}

CodecContext Task::context(size_t part, uint32_t contributor) const {
    return {place_of(tensor, step, layout->parts()[part].offset), contributor, scale ? *scale : 1.0F};
}

bool Task::is_done() const {
    if (!maker_.is_this_process()) return true;
    const std::lock_guard lock(mutex_);
    return is_done_;
}

bool Task::wait(std::chrono::nanoseconds timeout) const {
    if (!maker_.is_this_process()) return true;
    std::unique_lock lock(mutex_);
    return is_over_.wait_for(lock, timeout, [this] { return is_done_; });
}

bool Task::wait_measured(std::chrono::nanoseconds timeout) const {
    if (!maker_.is_this_process()) return true;
    std::unique_lock lock(mutex_);
    return is_over_.wait_for(lock, timeout, [this] { return num_unmeasured_ == 0 || is_done_; });
}

bool Task::wait_first(uint64_t num_bytes, std::chrono::nanoseconds timeout) const {
    if (!maker_.is_this_process()) return true;
    std::unique_lock lock(mutex_);
    return is_over_.wait_for(lock, timeout, [this, num_bytes] {
        if (is_done_ || first_bytes_ >= num_bytes) return true;
        wanted_bytes_ = std::min(wanted_bytes_, num_bytes);
        return false;
    });
}

uint64_t Task::first_bytes() const {
    if (!maker_.is_this_process()) return 0;
    const std::lock_guard lock(mutex_);
    return first_bytes_;
}

void Task::advance() {
    const auto& shapes = layout->parts();
    while (num_first_ < shapes.size() && has_arrived_[num_first_]) ++num_first_;
    first_bytes_ = num_first_ < shapes.size() ? shapes[num_first_].offset : declared.num_bytes;
}

void Task::arrive(size_t part) {
    const std::lock_guard lock(mutex_);
    has_arrived_[part] = true;
    advance();
    if (first_bytes_ < wanted_bytes_) return;
    wanted_bytes_ = UINT64_MAX;  // whoever waits for more says so again
    is_over_.notify_all();
}

std::optional<Measure> Task::measure() const {
    if (!maker_.is_this_process()) return {};
    const std::lock_guard lock(mutex_);
    if (!is_measured || num_unmeasured_ > 0) return {};
    Measure total;
    for (const Measure& each : measures_) total.append(each);
    return total;
}

void Task::set_measure(size_t part, const Measure& measure) {
    const std::lock_guard lock(mutex_);
    measures_[part] = measure;
    if (--num_unmeasured_ == 0) is_over_.notify_all();
}

std::optional<Failure> Task::failure() const {
    if (!maker_.is_this_process()) return Failure{FailureKind::closed, -1, tensor, step, kInherited};
    const std::lock_guard lock(mutex_);
    return failure_;
}

std::vector<int32_t> Task::missing() const {
    if (!maker_.is_this_process()) return {};
    const std::lock_guard lock(mutex_);
    std::set<int32_t> all;
    for (const auto& [offset, workers] : missing_) all.insert(workers.begin(), workers.end());
    return {all.begin(), all.end()};
}

bool Task::is_empty() const {
    if (!maker_.is_this_process()) return false;
    const std::lock_guard lock(mutex_);
    return is_empty_;
}

void Task::set_empty() {
    const std::lock_guard lock(mutex_);
    is_empty_ = true;
}

std::vector<int32_t> Task::without() const {
    if (!maker_.is_this_process()) return {};
    const std::lock_guard lock(mutex_);
    return {without_.begin(), without_.end()};
}

void Task::add_without(const std::vector<int32_t>& workers) {
    const std::lock_guard lock(mutex_);
    without_.insert(workers.begin(), workers.end());
}

void Task::when_over(std::function<void()> action) {
    {
        const std::lock_guard lock(mutex_);
        if (!is_done_) {
            when_over_.push_back(std::move(action));
            return;
        }
    }
    action();
}

void Task::complete() { end({}); }

void Task::end(std::optional<Failure> failure) noexcept {
    if (pieces && failure) pieces->give_up();
    if (pieces && !failure) pieces->complete();
    std::vector<std::function<void()>> actions;
    {
        const std::lock_guard lock(mutex_);
        failure_ = std::move(failure);
        is_done_ = true;
        missing_.clear();
        actions.swap(when_over_);
        is_over_.notify_all();
    }
    for (const auto& action : actions) action();
}

void Task::fail(const Failure& reason) noexcept {
    Failure failure{reason.kind, reason.rank, tensor, step, {}};
    try {
        failure.message = reason.message + "; tensor '" + declared.name + "' of step " +
                          std::to_string(step) + " is not finished";
    } catch (const std::bad_alloc&) {
        failure.message.clear();
    }
    end(std::move(failure));
}

void Task::set_missing(uint64_t part_offset, std::vector<int32_t> workers) {
    const std::lock_guard lock(mutex_);
    if (is_done_) return;
    if (workers.empty())
        missing_.erase(part_offset);
    else
        missing_[part_offset] = std::move(workers);
}

}  // namespace legato
