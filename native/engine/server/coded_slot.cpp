#include "engine/server/coded_slot.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/protocol/failure.hpp"
#include "kernels/crc32c.hpp"
#include "kernels/reduce.hpp"

namespace legato {

CodedSlot::CodedSlot(const Origin& origin, const Coding& coding, int32_t member, const Topology& topology,
                     size_t chunk_bytes, std::shared_ptr<BufferPool> pool,
                     std::shared_ptr<std::vector<float>> owed)
    : Slot(origin, {coding.push_bytes(origin.part), coding.pull_bytes(origin.part)}, member, topology,
           chunk_bytes, std::move(pool)),
      coding_(coding),
      num_items_(origin.part.length / sizeof(float)),
      owed_(std::move(owed)),
      contributions_(static_cast<size_t>(topology.num_workers())) {}

void CodedSlot::add(int32_t worker, const std::byte* data, uint64_t num_bytes) {
    uint64_t& progress = progress_[static_cast<size_t>(worker)];
    std::byte* contribution = contribution_of(worker);
    std::memcpy(contribution + progress, data, num_bytes);
    progress += num_bytes;
    if (progress < lengths_.push) return;
    if (!coding_.push->is_valid(contribution, num_items_))
        throw ProtocolError("a contribution that its codec cannot have made", origin().tensor, origin().step);
    add_whole();
}

void CodedSlot::add_ready(int32_t worker) {
    progress_[static_cast<size_t>(worker)] = lengths_.push;
    add_whole();
}

void CodedSlot::add_local(int32_t worker, std::shared_ptr<Task> task) {
    local_task_ = std::move(task);
    if (!local_task_->is_absent) local_task_->encode(origin().part_index, contribution_of(worker));
    add_ready(worker);
}

// Workers apply what they decode. A server that is none decodes it too, and so does one whose worker decodes
// it on a device. They know no agreed scale: where there is one workers do not ask, and none comes encoded.
Measure CodedSlot::measured() const {
    if (is_empty()) return {};
    if (local_task_ && !local_task_->is_coded)
        return measure(DType::f32, local_task_->destination.at(origin().part.offset), num_items_);
    const BufferPool::Buffer decoded = BufferPool::get(pool_, origin().part.length);
    coding_.pull->decode(decoded.data(), sum_, num_items_, context(static_cast<uint32_t>(progress_.size())));
    return measure(DType::f32, decoded.data(), num_items_);
}

CodecContext CodedSlot::context(uint32_t contributor) const {
    // Where workers agree on a scale the server needs none: with this one it sums the numbers as they travel.
    const float scale = coding_.has_agreed_scale ? 127.0F : 1.0F;
    return {place_of(origin().tensor, origin().step, origin().part.offset), contributor, scale};
}

std::byte* CodedSlot::contribution_of(int32_t worker) {
    BufferPool::Buffer& buffer = contributions_[static_cast<size_t>(worker)];
    if (!buffer) buffer = BufferPool::get(pool_, lengths_.push);
    return buffer.data();
}

void CodedSlot::add_whole() {
    for (; num_added_ < progress_.size() && progress_[num_added_] == lengths_.push; ++num_added_) {
        const BufferPool::Buffer contribution = std::move(contributions_[num_added_]);
        if (contribution) decode_and_add(static_cast<uint32_t>(num_added_), contribution.data());
    }
    if (num_added_ < progress_.size()) return;
    if (num_filled_ > 0) encode_sum();
    num_final_ = origin().part.length;
}

void CodedSlot::decode_and_add(uint32_t worker, const std::byte* contribution) {
    const bool is_first = std::exchange(num_filled_, origin().part.length) == 0;
    if (is_first) {
        total_buffer_ = BufferPool::get(pool_, origin().part.length);
        return coding_.push->decode(total_buffer_.data(), contribution, num_items_, context(worker));
    }
    const BufferPool::Buffer decoded = BufferPool::get(pool_, origin().part.length);
    coding_.push->decode(decoded.data(), contribution, num_items_, context(worker));
    reduce(DType::f32, Reduction::sum, total_buffer_.data(), decoded.data(), num_items_);
}

void CodedSlot::encode_sum() {
    std::byte* total = total_buffer_.data();
    // Numbers that travel by an agreed scale come back as an average, which has their range.
    const bool is_average = coding_.has_agreed_scale || origin().reduction == Reduction::average;
    if (is_average) scale(DType::f32, total, 1.0 / static_cast<double>(progress_.size()), num_items_);
    sum_buffer_ = BufferPool::get(pool_, lengths_.pull);
    sum_ = sum_buffer_.data();
    const CodecContext here = context(static_cast<uint32_t>(progress_.size()));
    if (owed_) {
        owed_->resize(num_items_);
        encode_owing(*coding_.pull, sum_buffer_.data(), total, owed_->data(), num_items_, here);
    } else {
        coding_.pull->encode(sum_buffer_.data(), total, num_items_, here);
    }
    for (size_t chunk = 0; chunk < checksums_.size(); ++chunk) {
        const uint64_t begin = chunk * chunk_bytes_;
        checksums_[chunk] = crc32c(sum_ + begin, std::min<uint64_t>(chunk_bytes_, lengths_.pull - begin));
    }
    if (local_task_) local_task_->decode(origin().part_index, sum_);
    total_buffer_ = {};
}

}  // namespace legato
