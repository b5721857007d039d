#include "engine/server/slot.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/crc32c.hpp"
#include "kernels/reduce.hpp"

namespace legato {

namespace {

// What one worker writes alone is not added up: it passes through as bytes.
DType dtype_of(const Slot::Origin& origin) { return origin.part.has_one_writer() ? DType::u8 : origin.dtype; }

// Only the server knows that the sum is complete.
double factor_of(const Slot::Origin& origin, int32_t member, const Topology& topology) {
    const bool is_average = origin.reduction == Reduction::average && !origin.part.has_one_writer();
    return is_average && member == origin.part.server ? 1.0 / topology.num_averaged() : 1.0;
}

// None where all that is sent goes through memory.
size_t num_chunks_to_check(const Part& part, uint64_t sum_bytes, int32_t member, const Topology& topology,
                           size_t chunk_bytes) {
    bool leaves_host = topology.relays(part, member);
    for (int32_t worker = 0; worker < topology.num_workers(); ++worker)
        leaves_host = leaves_host || (worker != member && part.is_sent_sum(worker) &&
                                      !topology.are_neighbours(worker, member));
    return leaves_host ? (sum_bytes + chunk_bytes - 1) / chunk_bytes : 0;
}

}  // namespace

Slot::Slot(const Origin& origin, const Lengths& lengths, int32_t member, const Topology& topology,
           size_t chunk_bytes, std::shared_ptr<BufferPool> pool)
    : origin_(origin),
      member_(member),
      topology_(topology),
      dtype_(dtype_of(origin)),
      item_bytes_(item_bytes(dtype_)),
      total_item_bytes_(accumulator_item_bytes(dtype_)),
      factor_(factor_of(origin, member, topology)),
      created_at_(std::chrono::steady_clock::now()),
      lengths_(lengths),
      chunk_bytes_(chunk_bytes),
      pool_(std::move(pool)),
      checksums_(num_chunks_to_check(origin.part, lengths.pull, member, topology, chunk_bytes), 0) {
    for (int32_t worker = 0; worker < topology.num_workers(); ++worker)
        progress_.push_back(topology.sends_to(origin.part, worker, member) ? 0 : lengths.push);
}

void Slot::add(int32_t worker, const std::byte* data, uint64_t num_bytes) {
    const uint64_t begin = progress(worker);
    ensure_total();
    combine(begin, data, num_bytes);
    advance(worker, begin + num_bytes);
}

void Slot::add_ready(int32_t worker) { advance(worker, origin_.part.length); }

void Slot::add_local(int32_t worker, std::shared_ptr<Task> task) {
    const Part& part = origin_.part;
    const std::byte* source = task->source.at(part.offset);
    std::byte* destination = task->destination.at(part.offset);
    local_task_ = std::move(task);
    if (part.reads(worker) && item_bytes_ == total_item_bytes_)
        return lend_destination(worker, source, destination);
    if (part.reads(worker)) sum_ = destination;
    if (!part.writes(worker) || local_task_->is_absent) return add_ready(worker);
    if (part.has_one_writer()) {
        sum_ = source;
        return advance(worker, part.length);
    }
    for (uint64_t offset = 0; offset < part.length; offset += chunk_bytes_)
        add(worker, source + offset, std::min<uint64_t>(chunk_bytes_, part.length - offset));
}

Measure Slot::measured() const {
    return is_empty() ? Measure{} : measure(dtype_, sum_, origin_.part.length / item_bytes_);
}

std::vector<int32_t> Slot::missing() const {
    std::vector<int32_t> missing;
    const bool is_at_server = member_ == origin_.part.server;
    for (int32_t worker = 0; worker < topology_.num_workers(); ++worker) {
        const int32_t sender = is_at_server ? topology_.speaker(origin_.part, worker) : worker;
        if (!is_missing(sender)) continue;
        const auto report = reports_.find(sender);
        if (report == reports_.end() || std::ranges::count(report->second, worker) > 0)
            missing.push_back(worker);
    }
    return missing;
}

void Slot::ensure_total() {
    if (total_ != nullptr) return;
    total_buffer_ = BufferPool::get(pool_, origin_.part.length / item_bytes_ * total_item_bytes_);
    total_ = total_buffer_.data();
}

void Slot::combine(uint64_t offset, const std::byte* data, uint64_t num_bytes) {
    const uint64_t num_reduced = offset < num_filled_ ? std::min(num_bytes, num_filled_ - offset) : 0;
    if (num_reduced > 0) reduce(dtype_, origin_.reduction, total_at(offset), data, num_reduced / item_bytes_);
    if (num_reduced < num_bytes)
        load(dtype_, total_at(offset + num_reduced), data + num_reduced,
             (num_bytes - num_reduced) / item_bytes_);
    num_filled_ = std::max(num_filled_, offset + num_bytes);
}

void Slot::lend_destination(int32_t worker, const std::byte* source, std::byte* destination) {
    const Part& part = origin_.part;
    const BufferPool::Buffer earlier = std::move(total_buffer_);
    const bool adds = part.writes(worker) && !local_task_->is_absent;
    const uint64_t num_earlier = std::exchange(num_filled_, adds ? part.length : num_filled_);
    total_ = destination;
    if (!adds) {
        if (num_earlier > 0) std::memcpy(destination, earlier.data(), num_earlier);
        return advance(worker, part.length);
    }
    for (uint64_t offset = 0; offset < part.length; offset += chunk_bytes_) {
        const uint64_t num_bytes = std::min<uint64_t>(chunk_bytes_, part.length - offset);
        if (source != destination) std::memcpy(destination + offset, source + offset, num_bytes);
        if (offset < num_earlier)
            reduce(dtype_, origin_.reduction, destination + offset, earlier.data() + offset,
                   std::min(num_bytes, num_earlier - offset) / item_bytes_);
        advance(worker, offset + num_bytes);
    }
}

void Slot::advance(int32_t worker, uint64_t progress) {
    progress_[static_cast<size_t>(worker)] = progress;
    const uint64_t num_final = *std::min_element(progress_.begin(), progress_.end());
    if (num_final > num_final_) make_final(std::exchange(num_final_, num_final), num_final);
}

// In the chunks in which the answers go out, while they are still in the cache.
void Slot::make_final(uint64_t begin, uint64_t end) {
    if (is_empty()) return;
    const bool is_widened = item_bytes_ != total_item_bytes_;
    if (is_widened && sum_ == nullptr) {
        sum_buffer_ = BufferPool::get(pool_, origin_.part.length);
        sum_ = sum_buffer_.data();
    }
    if (sum_ == nullptr) sum_ = total_;
    while (begin < end) {
        const size_t chunk = begin / chunk_bytes_;
        const uint64_t num_bytes = std::min<uint64_t>(end, (chunk + 1) * chunk_bytes_) - begin;
        // Only memory that is ours to write is written here: what one worker writes alone keeps factor 1.
        if (is_widened || factor_ != 1.0)
            store(dtype_, const_cast<std::byte*>(sum_) + begin, total_at(begin), factor_,
                  num_bytes / item_bytes_);
        if (!checksums_.empty()) checksums_[chunk] = crc32c(sum_ + begin, num_bytes, checksums_[chunk]);
        begin += num_bytes;
    }
}

}  // namespace legato
