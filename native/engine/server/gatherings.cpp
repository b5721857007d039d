#include "engine/server/gatherings.hpp"

#include <algorithm>
#include <cstring>

#include "engine/net/outgoing.hpp"
#include "engine/protocol/failure.hpp"
#include "engine/server/answers.hpp"
#include "engine/server/quorum.hpp"
#include "engine/server/running_total.hpp"

namespace legato {

namespace {

// A sum on its way to one worker, or word that there is none.
class Departure final : public Outgoing {
  public:
    Departure(const Urgency& urgency, const Header& header, std::shared_ptr<const BufferPool::Buffer> sum)
        : Outgoing(urgency, header, sum ? sum->data() : nullptr, sum ? header.part_length : 0),
          sum_(std::move(sum)) {}

  private:
    const std::shared_ptr<const BufferPool::Buffer> sum_;
};

}  // namespace

void Gatherings::add(const Header& header, const Tensor& tensor, const Layout& layout, size_t part,
                     const std::byte* payload) {
    const auto worker = static_cast<int32_t>(header.sender);
    const Slot::Origin origin{header.tensor,    header.step, header.dtype, CodecId::raw,
                              header.reduction, header.rank, part,         layout.parts()[part]};
    const GatheringPtr gathering = open(origin, tensor, layout, worker, header.chunk_offset == 0);
    if (!gathering) return;
    {
        const std::lock_guard lock(gathering->mutex());
        if (gathering->reduction() != header.reduction)
            throw ProtocolError("workers ask for different reductions of one tensor", header.tensor,
                                header.step, FailureKind::mismatch);
        if (gathering->progress(worker) != header.chunk_offset)
            throw ProtocolError("a contribution that repeats or skips bytes", header.tensor, header.step);
        if (gathering->is_asking(worker))
            throw ProtocolError("a contribution before the answer to the last one", header.tensor,
                                header.step);
        const bool is_complete = header.kind == FrameKind::ready ||
                                 gathering->add(worker, header.step, payload, header.payload_bytes);
        if (!is_complete) return;
        gathering->ask({worker, origin, nullptr, std::chrono::steady_clock::now()});
    }
    answer_due(gathering, origin);
}

void Gatherings::add_local(const std::shared_ptr<Task>& task, size_t part) {
    const Part& shape = task->layout->parts()[part];
    const Slot::Origin origin{
        task->tensor, task->step, task->declared.dtype, CodecId::raw, task->reduction, task->pull_rank,
        part,         shape};
    const GatheringPtr gathering = open(origin, task->declared, *task->layout, member_, true);
    if (!gathering) return;
    {
        const std::lock_guard lock(gathering->mutex());
        if (!task->is_absent)
            gathering->add(member_, task->step, task->source.at(shape.offset), shape.length);
        gathering->ask({member_, origin, task, std::chrono::steady_clock::now()});
    }
    answer_due(gathering, origin);
}

void Gatherings::tell_late(std::chrono::nanoseconds age) {
    struct Late {
        Gathering::Asker asker;
        std::vector<int32_t> missing;
    };
    std::vector<Late> late;
    const auto newest = std::chrono::steady_clock::now() - age;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [key, gathering] : gatherings_) {
            const std::lock_guard gathering_lock(gathering->mutex());
            for (const Gathering::Asker& asker : gathering->askers())
                if (asker.since <= newest) late.push_back({asker, gathering->missing(asker)});
        }
    }
    for (Late& each : late) {
        const Slot::Origin& origin = each.asker.origin;
        if (each.asker.task)
            each.asker.task->set_missing(origin.part.offset, std::move(each.missing));
        else
            peers_.send(each.asker.worker,
                        workers_frame(answer_header(origin, FrameKind::late, member_, epoch_), each.missing));
    }
}

bool Gatherings::needs(int32_t worker) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(gatherings_, [&](const auto& entry) {
        const std::lock_guard gathering_lock(entry.second->mutex());
        return std::ranges::any_of(entry.second->askers(), [&](const Gathering::Asker& asker) {
            return std::ranges::count(entry.second->missing(asker), worker) > 0;
        });
    });
}

void Gatherings::abandon() {
    decltype(gatherings_) dropped;  // destroyed after the lock
    const std::lock_guard lock(mutex_);
    is_abandoned_ = true;
    dropped.swap(gatherings_);
}

size_t Gatherings::num_active() const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::ranges::count_if(gatherings_, [](const auto& entry) {
        const std::lock_guard gathering_lock(entry.second->mutex());
        return !entry.second->is_idle();
    }));
}

Gatherings::GatheringPtr Gatherings::open(const Slot::Origin& origin, const Tensor& tensor,
                                          const Layout& layout, int32_t worker, bool is_beginning) {
    const std::lock_guard lock(mutex_);
    if (is_abandoned_) return nullptr;
    if (is_beginning && !layout.contributions().begin(origin.part_index, worker, origin.step))
        throw ProtocolError("a second contribution", origin.tensor, origin.step);
    GatheringPtr& gathering = gatherings_[{origin.tensor, origin.part.offset}];
    if (!gathering) gathering = make(origin, tensor);
    return gathering;
}

Gatherings::GatheringPtr Gatherings::make(const Slot::Origin& origin, const Tensor& tensor) const {
    if (tensor.staleness)
        return std::make_shared<RunningTotal>(origin, *tensor.staleness, num_workers_, pool_);
    return std::make_shared<Quorum>(origin, tensor.backups, num_workers_, pool_);
}

void Gatherings::answer_due(const GatheringPtr& gathering, const Slot::Origin& origin) {
    std::vector<Gathering::Answer> due;
    bool is_over;
    {
        const std::lock_guard lock(gathering->mutex());
        due = gathering->take_due();
        is_over = gathering->is_over();
    }
    {
        const std::lock_guard lock(mutex_);
        if (is_abandoned_) return;
        if (is_over) gatherings_.erase({origin.tensor, origin.part.offset});
    }
    for (const Gathering::Answer& answer : due) {
        if (answer.asker.task)
            give(answer);
        else
            send(answer);
    }
}

void Gatherings::give(const Gathering::Answer& answer) {
    const Slot::Origin& origin = answer.asker.origin;
    const std::shared_ptr<Task>& task = answer.asker.task;
    if (answer.sum)
        std::memcpy(task->destination.at(origin.part.offset), answer.sum->data(), origin.part.length);
    else
        task->set_empty();
    task->add_without(answer.without);
    worker_.finish(task, origin.part_index);
}

void Gatherings::send(const Gathering::Answer& answer) {
    const Slot::Origin& origin = answer.asker.origin;
    const int32_t worker = answer.asker.worker;
    // On the link that carries the sum, and so before it: when the sum is there, this is known.
    if (!answer.without.empty())
        peers_.send(
            worker, origin.part_index,
            workers_frame(answer_header(origin, FrameKind::without, member_, epoch_), answer.without));
    const Header header =
        answer_header(origin, answer.sum ? FrameKind::sum : FrameKind::nothing, member_, epoch_);
    const Urgency urgency{header.rank, false, header.step, next_sequence_++, header.part_offset};
    peers_.send(worker, origin.part_index, std::make_unique<Departure>(urgency, header, answer.sum));
}

}  // namespace legato
