#include "engine/server/server.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/net/outgoing.hpp"
#include "engine/protocol/failure.hpp"
#include "engine/server/coded_slot.hpp"

namespace legato {

namespace {

// This member's own share of a complete sum. It ends when no answer is sent from its memory any more.
class Lease {
  public:
    Lease(Worker& worker, Alarm& alarm, std::shared_ptr<Task> task, size_t part)
        : worker_(worker), alarm_(alarm), task_(std::move(task)), part_(part) {}
    ~Lease() {
        alarm_.guard([this] { worker_.finish(task_, part_); });
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

  private:
    Worker& worker_;
    Alarm& alarm_;
    const std::shared_ptr<Task> task_;
    const size_t part_;
};

// What of a slot is on its way: its sum to one reader or, from a relay, to the server; or an empty frame.
class Departure final : public Outgoing {
  public:
    Departure(const Urgency& urgency, const Header& header, std::shared_ptr<const Slot> slot,
              std::shared_ptr<Lease> lease, size_t chunk_bytes)
        : Outgoing(urgency, header, slot->sum(), carries_bytes(header.kind) ? slot->sum_bytes() : 0),
          slot_(std::move(slot)),
          lease_(std::move(lease)),
          chunk_bytes_(chunk_bytes) {}

    uint32_t checksum(uint64_t offset, size_t num_bytes) const override {
        const auto known = num_bytes == 0 ? 0 : slot_->checksum(offset / chunk_bytes_);
        return known ? *known : Outgoing::checksum(offset, num_bytes);
    }

  private:
    static bool carries_bytes(FrameKind kind) { return kind == FrameKind::sum || kind == FrameKind::push; }

    const std::shared_ptr<const Slot> slot_;
    const std::shared_ptr<Lease> lease_;
    const size_t chunk_bytes_;
};

// An answer that a relay passes on from its worker's destination.
class Copy final : public Outgoing {
  public:
    Copy(const Urgency& urgency, const Header& header, const std::byte* data, std::shared_ptr<Lease> lease)
        : Outgoing(urgency, header, data, header.kind == FrameKind::sum ? header.part_length : 0),
          lease_(std::move(lease)) {}

  private:
    const std::shared_ptr<Lease> lease_;
};

}  // namespace

size_t Server::KeyHash::operator()(const Key& key) const {
    const uint64_t mixed =
        (static_cast<uint64_t>(key.tensor) << 32 ^ static_cast<uint64_t>(key.step)) * 0x9e3779b97f4a7c15 ^
        key.offset;
    return std::hash<uint64_t>{}(mixed * 0x9e3779b97f4a7c15 >> 7);
}

void Server::add(const Header& header, const Tensor& tensor, const Layout& layout, size_t part,
                 const std::byte* payload) {
    if (tensor.gathers_otherwise()) return gatherings_.add(header, tensor, layout, part, payload);
    const auto worker = static_cast<int32_t>(header.sender);
    const SlotPtr slot = open({header.tensor, header.step, header.dtype, tensor.coding.pull_id(),
                               header.reduction, header.rank, part, layout.parts()[part]},
                              tensor, layout, worker, header.chunk_offset == 0);
    if (!slot) return;
    bool is_complete;
    {
        const std::lock_guard lock(slot->mutex());
        if (slot->origin().reduction != header.reduction)
            throw ProtocolError("workers ask for different reductions of one tensor", header.tensor,
                                header.step, FailureKind::mismatch);
        if (slot->progress(worker) != header.chunk_offset)
            throw ProtocolError("a contribution that repeats or skips bytes", header.tensor, header.step);
        if (header.flags & kMeasured) slot->ask_measure();
        if (header.flags & kUnread && header.chunk_offset == 0) slot->add_unread(worker);
        if (header.kind == FrameKind::ready)
            slot->add_ready(worker);
        else
            slot->add(worker, payload, header.payload_bytes);
        is_complete = slot->is_complete();
    }
    if (is_complete) complete(slot);
}

void Server::add_local(const std::shared_ptr<Task>& task, size_t part) {
    if (task->declared.gathers_otherwise()) return gatherings_.add_local(task, part);
    const SlotPtr slot =
        open({task->tensor, task->step, task->declared.dtype, task->declared.coding.pull_id(),
              task->reduction, task->pull_rank, part, task->layout->parts()[part]},
             task->declared, *task->layout, options_.member, true);
    if (!slot) return;
    bool is_complete;
    {
        const std::lock_guard lock(slot->mutex());
        if (task->is_measured) slot->ask_measure();
        slot->add_local(options_.member, task);
        is_complete = slot->is_complete();
    }
    if (is_complete) complete(slot);
}

void Server::tell_late(std::chrono::nanoseconds age) {
    gatherings_.tell_late(age);
    struct Late {
        Slot::Origin origin;
        std::vector<int32_t> missing;
        std::shared_ptr<Task> local_task;
    };
    std::vector<Late> late;
    const auto newest = std::chrono::steady_clock::now() - age;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [key, slot] : slots_) {
            if (slot->created_at() > newest) continue;
            const std::lock_guard slot_lock(slot->mutex());
            late.push_back({slot->origin(), slot->missing(), slot->local_task()});
        }
    }
    for (Late& slot : late) {
        const Header header = header_of(slot.origin, FrameKind::late);
        send_late(header, slot.origin.part, slot.missing);
        if (topology_.relays(slot.origin.part, options_.member))
            peers_.send(slot.origin.part.server, workers_frame(header, slot.missing));
        if (slot.local_task) slot.local_task->set_missing(slot.origin.part.offset, std::move(slot.missing));
    }
}

bool Server::needs(int32_t worker) const {
    if (gatherings_.needs(worker)) return true;
    const std::lock_guard lock(mutex_);
    return std::any_of(slots_.begin(), slots_.end(), [&](const auto& entry) {
        const std::lock_guard slot_lock(entry.second->mutex());
        return worker < topology_.num_workers() && entry.second->is_missing(worker);
    });
}

void Server::abandon() {
    gatherings_.abandon();
    decltype(slots_) dropped;  // destroyed after the lock
    const std::lock_guard lock(mutex_);
    is_abandoned_ = true;
    dropped.swap(slots_);
    held_.clear();
}

size_t Server::num_slots() const {
    const std::lock_guard lock(mutex_);
    return slots_.size() + gatherings_.num_active();
}

Server::SlotPtr Server::open(const Slot::Origin& origin, const Tensor& tensor, const Layout& layout,
                             int32_t worker, bool is_beginning) {
    const std::lock_guard lock(mutex_);
    if (is_abandoned_) return nullptr;
    // By worker and step, not by count: nothing stands in for a missing contribution, and nothing counts
    // twice, even when the sum has long gone out.
    if (is_beginning) {
        // Nobody begins a step before the last one is answered, so what one worker can make this member hold
        // is bounded by what has been declared.
        const int64_t latest = layout.contributions().latest(origin.part_index, worker);
        if (origin.step > latest && slots_.contains({origin.tensor, latest, origin.part.offset}))
            throw ProtocolError("a contribution before the answer to the last one", origin.tensor,
                                origin.step);
        if (!layout.contributions().begin(origin.part_index, worker, origin.step))
            throw ProtocolError("a second contribution", origin.tensor, origin.step);
    }
    const Key key{origin.tensor, origin.step, origin.part.offset};
    const auto found = slots_.find(key);
    if (found != slots_.end()) {
        if (found->second->origin().part.length != origin.part.length)
            throw ProtocolError("a contribution by another layout than the others'", origin.tensor,
                                origin.step);
        return found->second;
    }
    if (!is_beginning)
        throw ProtocolError("a contribution that does not begin at its beginning", origin.tensor,
                            origin.step);
    SlotPtr slot = make_slot(origin, tensor.coding, layout);
    slots_.emplace(key, slot);
    return slot;
}

Server::SlotPtr Server::make_slot(const Slot::Origin& origin, const Coding& coding,
                                  const Layout& layout) const {
    const auto [member, epoch, chunk_bytes] = options_;
    if (coding)
        return std::make_shared<CodedSlot>(
            origin, coding, member, topology_, chunk_bytes, pool_,
            coding.server_feeds_back ? layout.owed(origin.part_index) : nullptr);
    const Slot::Lengths lengths{origin.part.length, origin.part.length};
    return std::make_shared<Slot>(origin, lengths, member, topology_, chunk_bytes, pool_);
}

void Server::complete(const SlotPtr& slot) {
    const Slot::Origin& origin = slot->origin();
    std::vector<SlotPtr> passing;
    catalog_.reach(origin.tensor, origin.step);
    // Before anybody may answer it: then its memory may be the worker's again.
    if (slot->is_measured() && origin.part.server == options_.member) tell_measure(slot);
    {
        const std::lock_guard lock(mutex_);
        slots_.erase({origin.tensor, origin.step, origin.part.offset});
        if (origin.part.server == options_.member) passing = pass_barrier(slot);
    }
    if (origin.part.server != options_.member) return send_on(slot, next_sequence_++);
    for (const SlotPtr& each : passing) answer(each, next_sequence_++);
}

void Server::set_stage_barrier(int64_t from_step, std::vector<uint32_t> tensors) {
    std::sort(tensors.begin(), tensors.end());
    const std::lock_guard lock(mutex_);
    std::erase_if(barriers_, [&](const Barrier& barrier) { return barrier.from_step >= from_step; });
    // Steps under way are those before this one and at most one earlier change.
    if (barriers_.size() > 1) barriers_.erase(barriers_.begin(), barriers_.end() - 1);
    barriers_.push_back({from_step, std::move(tensors)});
}

std::vector<Server::SlotPtr> Server::pass_barrier(const SlotPtr& slot) {
    const Slot::Origin& origin = slot->origin();
    const auto barrier = std::find_if(barriers_.rbegin(), barriers_.rend(),
                                      [&](const Barrier& each) { return each.from_step <= origin.step; });
    if (barrier == barriers_.rend() ||
        !std::binary_search(barrier->tensors.begin(), barrier->tensors.end(), origin.tensor))
        return {slot};
    auto held = held_.find(origin.step);
    if (held == held_.end())
        held = held_.emplace(origin.step, Held{num_served(barrier->tensors, origin.step), {}}).first;
    held->second.slots.push_back(slot);
    if (--held->second.num_missing > 0) return {};
    std::vector<SlotPtr> passing = std::move(held->second.slots);
    held_.erase(held);
    return passing;
}

size_t Server::num_served(const std::vector<uint32_t>& tensors, int64_t step) const {
    size_t num_parts = 0;
    for (const uint32_t tensor : tensors) {
        const Catalog::Entry entry = catalog_.find(tensor, step);
        if (entry.layout == nullptr) continue;
        num_parts += static_cast<size_t>(std::count_if(
            entry.layout->parts().begin(), entry.layout->parts().end(),
            [&](const Part& part) { return part.server == options_.member && part.length > 0; }));
    }
    return num_parts;
}

void Server::tell_measure(const SlotPtr& slot) {
    const Slot::Origin& origin = slot->origin();
    const Measure measure = slot->measured();
    if (slot->local_task()) worker_.take_measure(slot->local_task(), origin.part_index, measure);
    const ControlFrame frame = measure_frame(header_of(origin, FrameKind::measure), measure);
    for (int32_t worker = 0; worker < topology_.num_workers(); ++worker)
        if (worker != options_.member) peers_.send(worker, origin.part_index, frame);
}

void Server::answer(const SlotPtr& slot, uint64_t sequence) {
    const Slot::Origin& origin = slot->origin();
    std::shared_ptr<Lease> lease;
    if (slot->local_task() && slot->is_empty()) slot->local_task()->set_empty();
    if (slot->local_task())
        lease = std::make_shared<Lease>(worker_, alarm_, slot->local_task(), origin.part_index);
    if (!slot->lends_memory()) lease = nullptr;
    const Urgency urgency{origin.pull_rank, false, origin.step, sequence, origin.part.offset};
    for (int32_t worker = 0; worker < topology_.num_workers(); ++worker) {
        if (worker == options_.member || !topology_.sends_to(origin.part, worker, options_.member)) continue;
        const auto kind = slot->is_empty()            ? FrameKind::nothing
                          : slot->is_sent_sum(worker) ? FrameKind::sum
                                                      : FrameKind::acknowledge;
        peers_.send(
            worker, origin.part_index,
            std::make_unique<Departure>(urgency, header_of(origin, kind), slot, lease, options_.chunk_bytes));
    }
}

void Server::send_on(const SlotPtr& slot, uint64_t sequence) {
    const Slot::Origin& origin = slot->origin();
    const Urgency urgency{slot->local_task()->push_rank, true, origin.step, sequence, origin.part.offset};
    Header header = header_of(origin, slot->is_empty() ? FrameKind::ready : FrameKind::push);
    header.flags = slot->is_measured() ? kMeasured : 0;
    peers_.send(origin.part.server, origin.part_index,
                std::make_unique<Departure>(urgency, header, slot, nullptr, options_.chunk_bytes));
}

void Server::pass_on(const std::shared_ptr<Task>& task, size_t part, FrameKind kind) {
    const Slot::Origin origin{task->tensor,
                              task->step,
                              task->declared.dtype,
                              task->declared.coding.pull_id(),
                              task->reduction,
                              task->pull_rank,
                              part,
                              task->layout->parts()[part]};
    {
        const std::lock_guard lock(mutex_);
        if (is_abandoned_) return;
    }
    const uint64_t sequence = next_sequence_++;
    const auto lease = std::make_shared<Lease>(worker_, alarm_, task, part);
    const Urgency urgency{origin.pull_rank, false, origin.step, sequence, origin.part.offset};
    for (int32_t worker = 0; worker < topology_.num_workers(); ++worker) {
        if (worker == options_.member || !topology_.sends_to(origin.part, worker, options_.member)) continue;
        peers_.send(worker, part,
                    std::make_unique<Copy>(urgency, header_of(origin, kind),
                                           task->destination.at(origin.part.offset), lease));
    }
}

void Server::hear_late(const Header& header, const Part& part, const std::vector<int32_t>& missing) {
    if (topology_.relays(part, options_.member)) return send_late(header, part, missing);
    SlotPtr slot;
    {
        const std::lock_guard lock(mutex_);
        const auto found = slots_.find({header.tensor, header.step, header.part_offset});
        if (found == slots_.end()) return;
        slot = found->second;
    }
    const std::lock_guard lock(slot->mutex());
    slot->note_missing(header.sender, missing);
}

void Server::send_late(Header header, const Part& part, const std::vector<int32_t>& missing) {
    header.sender = static_cast<uint16_t>(options_.member);
    for (int32_t worker = 0; worker < topology_.num_workers(); ++worker) {
        const bool is_missing = std::binary_search(missing.begin(), missing.end(), worker);
        if (worker != options_.member && !is_missing && topology_.sends_to(part, worker, options_.member))
            peers_.send(worker, workers_frame(header, missing));
    }
}

}  // namespace legato
