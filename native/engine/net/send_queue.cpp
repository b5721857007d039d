#include "engine/net/send_queue.hpp"

#include <algorithm>
#include <utility>

namespace legato {

namespace {

constexpr auto kLeastUrgent = [](const auto& a, const auto& b) { return b.part->urgency < a.part->urgency; };

}  // namespace

bool SendQueue::push(std::unique_ptr<Outgoing> part) {
    const std::lock_guard lock(mutex_);
    if (is_abandoned_) return false;
    push_entry(std::move(part), 0);
    return std::exchange(is_idle_, false);
}

bool SendQueue::push(ControlFrame frame) {
    const std::lock_guard lock(mutex_);
    control_.push_back(std::move(frame));
    return std::exchange(is_idle_, false);
}

bool SendQueue::take(Taken& taken, size_t chunk_bytes, size_t batch_bytes, size_t max_chunks) {
    taken.control.clear();
    taken.chunks.clear();
    const std::lock_guard lock(mutex_);
    taken.control.swap(control_);
    size_t num_bytes = 0;
    while (!heap_.empty() && num_bytes < batch_bytes && taken.chunks.size() < max_chunks) {
        Entry& entry = heap_.front();
        const uint64_t left = entry.part->num_bytes - entry.taken;
        Chunk chunk{entry.part.get(), entry.taken, std::min<uint64_t>(left, chunk_bytes), nullptr};
        entry.taken += chunk.num_bytes;
        num_bytes += chunk.num_bytes + kHeaderBytes;
        if (chunk.num_bytes == left) chunk.finished = pop_entry();
        taken.chunks.push_back(std::move(chunk));
    }
    is_idle_ = taken.control.empty() && taken.chunks.empty();
    return !is_idle_;
}

bool SendQueue::has_more_urgent_than(const Urgency& urgency) const {
    const std::lock_guard lock(mutex_);
    return !control_.empty() || (!heap_.empty() && heap_.front().part->urgency < urgency);
}

void SendQueue::give_back(std::vector<Chunk>& chunks, size_t first) {
    const std::lock_guard lock(mutex_);
    // From the last to the first, so that a part's own last chunk brings it back before the others look for
    // it.
    for (size_t i = chunks.size(); i-- > first;) {
        Chunk& chunk = chunks[i];
        if (chunk.finished) push_entry(std::move(chunk.finished), chunk.offset);
        const auto is_its = [&](const Entry& entry) { return entry.part.get() == chunk.part; };
        std::find_if(heap_.begin(), heap_.end(), is_its)->taken = chunk.offset;
    }
    chunks.resize(first);
}

std::unique_ptr<Outgoing> SendQueue::pop() {
    const std::lock_guard lock(mutex_);
    is_idle_ = heap_.empty();
    return heap_.empty() ? nullptr : pop_entry();
}

void SendQueue::abandon() {
    std::vector<Entry> dropped;  // destroyed after the lock: a part's end may reach far
    const std::lock_guard lock(mutex_);
    is_abandoned_ = true;
    dropped.swap(heap_);
}

void SendQueue::push_entry(std::unique_ptr<Outgoing> part, uint64_t taken) {
    heap_.push_back({std::move(part), taken});
    std::push_heap(heap_.begin(), heap_.end(), kLeastUrgent);
}

std::unique_ptr<Outgoing> SendQueue::pop_entry() {
    std::pop_heap(heap_.begin(), heap_.end(), kLeastUrgent);
    auto part = std::move(heap_.back().part);
    heap_.pop_back();
    return part;
}

}  // namespace legato
