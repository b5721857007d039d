#include "engine/collector.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/instruction_set.hpp"

namespace legato {

Collector::Collector(std::shared_ptr<Engine> engine, std::shared_ptr<StepGate> gate,
                     std::vector<Member> members)
    : engine_(std::move(engine)),
      gate_(std::move(gate)),
      members_(std::move(members)),
      entries_(members_.size()) {}

void Collector::follow(int64_t from_step, std::vector<Bucket> buckets) {
    Buckets plan{std::move(buckets), std::vector<uint32_t>(members_.size(), UINT32_MAX),
                 std::vector<size_t>(members_.size())};
    size_t place = 0;
    for (uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket)
        for (const uint32_t index : plan.buckets[bucket].members) {
            if (index >= members_.size() || plan.bucket_of[index] != UINT32_MAX)
                throw std::invalid_argument("a plan names each of " + std::to_string(members_.size()) +
                                            " tensors once; tensor " + std::to_string(index) + " is not so");
            plan.bucket_of[index] = bucket;
            plan.place_of[index] = place++;
        }
    for (const uint32_t bucket : plan.bucket_of)
        if (bucket == UINT32_MAX) throw std::invalid_argument("a plan names every tensor; one is missing");
    std::vector<Told> told;
    {
        const std::lock_guard lock(mutex_);
        const bool is_now = from_step <= latest_step_;
        if (is_now) let_go(told);
        plans_.insert_or_assign(from_step, std::move(plan));
        if (is_now) adopt();
    }
    tell(told);
}

void Collector::set_pieces(uint32_t index, uint64_t piece_bytes, uint32_t* words) {
    const std::lock_guard lock(mutex_);
    const Member& member = members_.at(index);
    if (member.scale)
        throw std::invalid_argument("tensor '" + member.name +
                                    "' needs a scale that the workers agree on: it cannot pass in pieces");
    entries_[index].pieces = std::make_shared<Pieces>(piece_bytes, words);
}

void Collector::set_coded(uint32_t index, uint64_t most_bytes) {
    const std::lock_guard lock(mutex_);
    entries_.at(index).most_coded_bytes = most_bytes;
}

void Collector::set_measured(bool is_measured) {
    const std::lock_guard lock(mutex_);
    is_measured_ = is_measured;
}

void Collector::ready(uint32_t index, uint64_t num_bytes) {
    std::shared_ptr<Task> task;
    {
        const std::lock_guard lock(mutex_);
        Entry& entry = entries_.at(index);
        if (!entry.pieces) return;
        entry.pieces->raise(num_bytes);
        entry.since = std::chrono::steady_clock::now();
        task = entry.task;  // null while its bucket is not whole: it will begin with what is ready then
    }
    if (task) engine_->wake(task);
}

int64_t Collector::add(uint32_t index, const std::byte* source, std::byte* destination, uint64_t num_bytes,
                       bool is_absent, bool is_unread) {
    engine_->check_process();  // before the lock, which in a child of the process may never be free again
    std::vector<Told> told;
    std::unique_lock lock(mutex_);
    const int64_t step = take(index, source, destination, num_bytes, is_absent, is_unread, {}, told);
    const std::string refusal = entries_[index].refusal;
    lock.unlock();
    tell(told);
    if (!refusal.empty()) throw std::invalid_argument(refusal);
    return step;
}

void Collector::start(uint32_t index, const std::byte* source, std::byte* destination, uint64_t num_bytes,
                      const Done& done) {
    std::vector<Told> told;
    try {
        engine_->check_process();
        const std::lock_guard lock(mutex_);
        take(index, source, destination, num_bytes, source == nullptr, false, done, told);
    } catch (const std::exception& error) {
        done(error.what());
    }
    tell(told);
}

int64_t Collector::take(uint32_t index, const std::byte* source, std::byte* destination, uint64_t num_bytes,
                        bool is_absent, bool is_unread, const Done& done, std::vector<Told>& told) {
    if (index >= members_.size())
        throw std::invalid_argument("there are " + std::to_string(members_.size()) +
                                    " tensors, and none at place " + std::to_string(index));
    const Member& member = members_[index];
    Entry& entry = entries_[index];
    const uint64_t most_bytes = entry.most_coded_bytes.value_or(member.num_bytes);
    if (num_bytes > most_bytes || (num_bytes < most_bytes && !entry.most_coded_bytes))
        throw std::invalid_argument("tensor '" + member.name + "' is declared with " +
                                    std::to_string(most_bytes) + " bytes, but its memory has " +
                                    std::to_string(num_bytes));
    if (entry.is_waiting || (entry.task && !entry.task->is_done()))
        throw std::invalid_argument("tensor '" + member.name + "': step " +
                                    std::to_string(entry.latest_step) + " is still under way");
    const int64_t step = entry.next_step;
    if (step > latest_step_) {
        if (plans_.empty()) throw std::invalid_argument("there is no plan to follow");
        latest_step_ = step;
        if (&at(step) != current_) {
            let_go(told);
            adopt();
        }
    }
    entry.next_step = step + 1;
    entry.latest_step = step;
    entry.submission = {member.tensor,      step,     0, 0, {source, num_bytes}, {destination, num_bytes},
                        Reduction::average, is_absent};
    entry.submission.is_measured = is_measured_;
    entry.submission.is_unread = is_unread;
    entry.submission.is_coded = entry.most_coded_bytes.has_value();  // the engine compares its bytes
    if (entry.pieces) {
        entry.pieces->begin(mark_of(step), destination, num_bytes);
        entry.submission.pieces = entry.pieces;
    }
    entry.is_waiting = true;
    entry.since = std::chrono::steady_clock::now();
    entry.task = nullptr;
    entry.refusal.clear();
    entry.done = done;
    const uint32_t bucket = current_->bucket_of[index];
    waiting_[bucket].push_back(index);
    if (--num_missing_[bucket] == 0 || !reason_.empty()) {
        num_missing_[bucket] = current_->buckets[bucket].members.size();
        release(std::exchange(waiting_[bucket], {}), told);
    }
    return step;
}

void Collector::send(uint32_t index) {
    engine_->check_process();
    std::vector<Told> told;
    {
        const std::lock_guard lock(mutex_);
        if (current_ != nullptr) release(std::exchange(waiting_[current_->bucket_of.at(index)], {}), told);
    }
    tell(told);
}

std::shared_ptr<Task> Collector::sent(uint32_t index, std::chrono::nanoseconds timeout) const {
    std::unique_lock lock(mutex_);
    const Entry& entry = entries_.at(index);
    if (!was_sent_.wait_for(lock, timeout, [&] { return !entry.is_waiting; })) return nullptr;
    if (!entry.refusal.empty()) throw std::invalid_argument(entry.refusal);
    return entry.task;
}

bool Collector::is_over(uint32_t index) const {
    engine_->check_process();
    const std::lock_guard lock(mutex_);
    const Entry& entry = entries_.at(index);
    return !entry.is_waiting && (!entry.task || entry.task->is_done());
}

int64_t Collector::step(uint32_t index) const {
    const std::lock_guard lock(mutex_);
    return entries_.at(index).latest_step;
}

bool Collector::is_measured(uint32_t index) const {
    const std::lock_guard lock(mutex_);
    return entries_.at(index).submission.is_measured;
}

int64_t Collector::next_step(uint32_t index) const {
    const std::lock_guard lock(mutex_);
    return entries_.at(index).next_step;
}

int64_t Collector::latest_step() const {
    const std::lock_guard lock(mutex_);
    return latest_step_;
}

std::vector<int64_t> Collector::latest_steps() const {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> steps;
    for (const Entry& entry : entries_) steps.push_back(entry.latest_step);
    return steps;
}

void Collector::set_next_steps(const std::vector<int64_t>& steps) {
    if (steps.size() != members_.size())
        throw std::invalid_argument("there are " + std::to_string(members_.size()) + " tensors, but " +
                                    std::to_string(steps.size()) + " steps");
    const std::lock_guard lock(mutex_);
    for (size_t index = 0; index < steps.size(); ++index) entries_[index].next_step = steps[index];
}

void Collector::set_reason(std::string reason) {
    std::vector<Told> told;
    {
        const std::lock_guard lock(mutex_);
        reason_ = std::move(reason);
        let_go(told);
    }
    tell(told);
}

std::vector<Collector::Overdue> Collector::overdue(std::chrono::nanoseconds age) const {
    const auto before = std::chrono::steady_clock::now() - age;
    const std::lock_guard lock(mutex_);
    std::vector<Overdue> late;
    for (uint32_t index = 0; index < entries_.size(); ++index) {
        const Entry& entry = entries_[index];
        const bool is_under_way = entry.is_waiting || (entry.task && !entry.task->is_done());
        const bool is_here = !entry.pieces || entry.pieces->is_ready();
        if (is_under_way && is_here && entry.since <= before)
            late.push_back(
                {index, entry.latest_step, entry.task ? entry.task->missing() : std::vector<int32_t>()});
    }
    return late;
}

void Collector::let_go(std::vector<Told>& told) {
    for (auto& waiting : waiting_) release(std::exchange(waiting, {}), told);
}

void Collector::adopt() {
    current_ = &at(latest_step_);
    waiting_.assign(current_->buckets.size(), {});
    num_missing_.clear();
    for (const Bucket& bucket : current_->buckets) num_missing_.push_back(bucket.members.size());
}

void Collector::release(std::vector<uint32_t> indices, std::vector<Told>& told) {
    if (indices.empty()) return;
    int64_t newest = -1;
    for (const uint32_t index : indices) newest = std::max(newest, entries_[index].submission.step);
    // Whichever came first: the other executors start a bucket's parts in the plan's order, too.
    std::ranges::sort(indices, {}, [&plan = at(newest)](uint32_t index) { return plan.place_of[index]; });
    if (!gate_ || gate_->admit(newest)) return submit(indices, told);
    const auto later = [self = shared_from_this(), indices] {
        std::vector<Told> told_later;
        {
            const std::lock_guard lock(self->mutex_);
            self->submit(indices, told_later);
        }
        self->tell(told_later);
    };
    if (gate_->admit_or_hold(newest, later)) submit(indices, told);  // it has opened since
}

void Collector::submit(const std::vector<uint32_t>& indices, std::vector<Told>& told) {
    std::vector<Submission> scales, submissions;
    for (const uint32_t index : indices) {
        Entry& entry = entries_[index];
        const Buckets& plan = at(entry.submission.step);
        const Bucket& bucket = plan.buckets[plan.bucket_of[index]];
        entry.submission.push_rank = bucket.push_rank;
        entry.submission.pull_rank = bucket.pull_rank;
        if (members_[index].scale) scales.push_back(scale_of(index));
        submissions.push_back(entry.submission);
    }
    std::vector<std::shared_ptr<Task>> tasks;
    std::string refusal;
    try {
        if (!scales.empty()) {
            auto agreed = engine_->submit(scales);
            size_t next = 0;
            for (size_t i = 0; i < indices.size(); ++i) {
                if (!members_[indices[i]].scale) continue;
                submissions[i].after = std::move(agreed[next++]);
                submissions[i].scale = &entries_[indices[i]].scale;
            }
        }
        tasks = engine_->submit(submissions);
    } catch (const std::exception& error) {
        refusal = error.what();
    }
    for (size_t i = 0; i < indices.size(); ++i) {
        Entry& entry = entries_[indices[i]];
        entry.is_waiting = false;
        entry.refusal = refusal;
        if (refusal.empty()) entry.task = std::move(tasks[i]);
        if (entry.done) told.push_back({std::exchange(entry.done, {}), entry.task, refusal});
    }
    was_sent_.notify_all();
}

Submission Collector::scale_of(uint32_t index) {
    Entry& entry = entries_[index];
    const Span<const std::byte>& source = entry.submission.source;
    entry.scale = entry.submission.is_absent ? 0
                                             : current_instruction_set().codec_loops->largest(
                                                   source.data, source.num_bytes / sizeof(float));
    auto* value = reinterpret_cast<std::byte*>(&entry.scale);
    // It goes before all else.
    return {*members_[index].scale,
            entry.submission.step,
            0,
            0,
            {value, sizeof(float)},
            {value, sizeof(float)},
            Reduction::max,
            entry.submission.is_absent};
}

const Collector::Buckets& Collector::at(int64_t step) const {
    const auto later = plans_.upper_bound(step);
    return later == plans_.begin() ? later->second : std::prev(later)->second;
}

void Collector::tell(const std::vector<Told>& told) {
    for (const Told& each : told) {
        if (each.task == nullptr) {
            each.done(each.refusal.c_str());
            continue;
        }
        // The task owns what is called, and calls it once: it is alive then.
        each.task->when_over([self = shared_from_this(), task = each.task.get(), done = each.done] {
            const auto failure = task->failure();
            if (!failure) return done(nullptr);
            std::string reason;
            {
                const std::lock_guard lock(self->mutex_);
                reason = self->reason_.empty() ? failure->message : self->reason_;
            }
            done(reason.c_str());
        });
    }
}

}  // namespace legato
