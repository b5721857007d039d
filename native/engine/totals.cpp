#include "engine/totals.hpp"

#include <algorithm>

#include "engine/answers.hpp"
#include "engine/failure.hpp"
#include "engine/outgoing.hpp"

namespace legato {

namespace {

// A total as it was when its askers became due: it goes on changing.
class Snapshot final : public Outgoing {
  public:
    Snapshot(const Urgency& urgency, const Header& header, std::shared_ptr<const BufferPool::Buffer> total)
        : Outgoing(urgency, header, total->data(), header.part_length), total_(std::move(total)) {}

  private:
    const std::shared_ptr<const BufferPool::Buffer> total_;
};

}  // namespace

void Totals::add(const Header& header, const Tensor& tensor, const Layout& layout, size_t part,
                 const std::byte* payload) {
    const auto worker = static_cast<int32_t>(header.sender);
    const Slot::Origin origin{header.tensor,    header.step,     header.dtype, CodecId::raw,
                              header.reduction, header.priority, part,         layout.parts()[part]};
    const TotalPtr total = open(origin, *tensor.staleness, layout, worker, header.chunk_offset == 0);
    if (!total) return;
    {
        const std::lock_guard lock(total->mutex());
        if (total->reduction() != header.reduction)
            throw ProtocolError("workers ask for different reductions of one tensor", header.tensor,
                                header.step, FailureKind::mismatch);
        if (total->progress(worker) != header.chunk_offset)
            throw ProtocolError("a contribution that repeats or skips bytes", header.tensor, header.step);
        if (total->is_asking(worker))
            throw ProtocolError("a contribution before the answer to the last one", header.tensor,
                                header.step);
        const bool is_complete =
            header.kind == FrameKind::ready || total->add(worker, payload, header.payload_bytes);
        if (!is_complete) return;
        total->ask({worker, origin, nullptr, std::chrono::steady_clock::now()});
    }
    answer(total, origin);
}

void Totals::add_local(const std::shared_ptr<Task>& task, size_t part) {
    const Part& shape = task->layout->parts()[part];
    const Slot::Origin origin{
        task->tensor, task->step, task->declared.dtype, CodecId::raw, task->reduction, task->priority,
        part,         shape};
    const TotalPtr total = open(origin, *task->declared.staleness, *task->layout, member_, true);
    if (!total) return;
    {
        const std::lock_guard lock(total->mutex());
        if (!task->is_absent) total->add(member_, task->source + shape.offset, shape.length);
        total->ask({member_, origin, task, std::chrono::steady_clock::now()});
    }
    answer(total, origin);
}

void Totals::tell_late(std::chrono::nanoseconds age) {
    struct Late {
        RunningTotal::Asker asker;
        std::vector<int32_t> missing;
    };
    std::vector<Late> late;
    const auto newest = std::chrono::steady_clock::now() - age;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [key, total] : totals_) {
            const std::lock_guard total_lock(total->mutex());
            for (const RunningTotal::Asker& asker : total->askers())
                if (asker.since <= newest) late.push_back({asker, total->missing(asker)});
        }
    }
    for (Late& each : late) {
        const Slot::Origin& origin = each.asker.origin;
        if (each.asker.task)
            each.asker.task->set_missing(origin.part.offset, std::move(each.missing));
        else
            peers_.send(each.asker.worker,
                        late_frame(answer_header(origin, FrameKind::late, member_, epoch_), each.missing));
    }
}

bool Totals::needs(int32_t worker) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(totals_, [&](const auto& entry) {
        const std::lock_guard total_lock(entry.second->mutex());
        return std::ranges::any_of(entry.second->askers(), [&](const RunningTotal::Asker& asker) {
            return std::ranges::count(entry.second->missing(asker), worker) > 0;
        });
    });
}

void Totals::abandon() {
    decltype(totals_) dropped;  // destroyed after the lock
    const std::lock_guard lock(mutex_);
    is_abandoned_ = true;
    dropped.swap(totals_);
}

size_t Totals::num_totals() const {
    const std::lock_guard lock(mutex_);
    return totals_.size();
}

Totals::TotalPtr Totals::open(const Slot::Origin& origin, int64_t staleness, const Layout& layout,
                              int32_t worker, bool is_beginning) {
    const std::lock_guard lock(mutex_);
    if (is_abandoned_) return nullptr;
    if (is_beginning && !layout.contributions().begin(origin.part_index, worker, origin.step))
        throw ProtocolError("a second contribution", origin.tensor, origin.step);
    TotalPtr& total = totals_[{origin.tensor, origin.part.offset}];
    if (!total) total = std::make_shared<RunningTotal>(origin, staleness, num_workers_, pool_);
    return total;
}

void Totals::answer(const TotalPtr& total, const Slot::Origin& origin) {
    std::vector<RunningTotal::Asker> due;
    std::shared_ptr<BufferPool::Buffer> snapshot;
    bool is_over;
    {
        const std::lock_guard lock(total->mutex());
        due = total->take_due();
        is_over = total->is_over();
        for (const RunningTotal::Asker& asker : due) {
            if (asker.task) {
                total->write(asker.task->destination + origin.part.offset);
            } else if (!snapshot) {
                snapshot = std::make_shared<BufferPool::Buffer>(BufferPool::get(pool_, origin.part.length));
                total->write(snapshot->data());
            }
        }
    }
    {
        const std::lock_guard lock(mutex_);
        if (is_abandoned_) return;
        if (is_over) totals_.erase({origin.tensor, origin.part.offset});
    }
    for (const RunningTotal::Asker& asker : due) {
        if (asker.task) {
            worker_.finish(asker.task, origin.part_index);
            continue;
        }
        const Header header = answer_header(asker.origin, FrameKind::sum, member_, epoch_);
        const Urgency urgency{header.priority, false, header.step, next_sequence_++, header.part_offset};
        peers_.send(asker.worker, origin.part_index, std::make_unique<Snapshot>(urgency, header, snapshot));
    }
}

}  // namespace legato
