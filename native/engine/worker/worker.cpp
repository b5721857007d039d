#include "engine/worker/worker.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/net/outgoing.hpp"
#include "engine/protocol/failure.hpp"

namespace legato {

namespace {

Header header_of(const Task& task, const Part& part, int32_t member, uint32_t epoch) {
    Header header;
    header.kind = part.writes(member) && !task.is_absent ? FrameKind::push : FrameKind::ready;
    header.dtype = task.declared.dtype;
    header.codec = task.declared.coding.push_id();
    header.reduction = task.reduction;
    header.sender = static_cast<uint16_t>(member);
    header.epoch = epoch;
    header.step = task.step;
    header.part_offset = part.offset;
    header.part_length = part.length;
    header.tensor = task.tensor;
    header.rank = task.pull_rank;
    header.flags = task.is_measured ? kMeasured : 0;
    return header;
}

// A part on its way to its server.
class Contribution final : public Outgoing {
  public:
    Contribution(Worker& worker, Worker::TaskPtr task, size_t part, const Header& header)
        : Contribution(worker, task, part, header, task->source.at(task->extent(part).offset), {}) {}
    // Of an encoded part.
    Contribution(Worker& worker, const Worker::TaskPtr& task, size_t part, const Header& header,
                 BufferPool::Buffer encoded)
        : Contribution(worker, task, part, header, encoded.data(), std::move(encoded)) {}

    void sent() override { worker_.on_sent(task_, part_); }

  private:
    Contribution(Worker& worker, Worker::TaskPtr task, size_t part, const Header& header,
                 const std::byte* data, BufferPool::Buffer&& encoded)
        : Outgoing({task->push_rank, true, task->step, task->sequence, header.part_offset}, header, data,
                   header.kind == FrameKind::push ? task->push_bytes(part) : 0),
          worker_(worker),
          task_(std::move(task)),
          part_(part),
          encoded_(std::move(encoded)) {}

    Worker& worker_;
    const Worker::TaskPtr task_;
    const size_t part_;
    const BufferPool::Buffer encoded_;
};

// A part that has to be encoded first, which is done in its turn on the way to this member itself.
class Encoding final : public Outgoing {
  public:
    Encoding(Worker& worker, Worker::TaskPtr task, size_t part, const Header& header)
        : Outgoing({task->push_rank, true, task->step, task->sequence, header.part_offset}, header, nullptr,
                   0),
          worker_(worker),
          task_(std::move(task)),
          part_(part) {}

    void sent() override { worker_.send_encoded(task_, part_); }

  private:
    Worker& worker_;
    const Worker::TaskPtr task_;
    const size_t part_;
};

// The same for a part that this member serves or relays itself.
class LocalContribution final : public Outgoing {
  public:
    LocalContribution(Worker& worker, const Worker::ServeLocally& serve, Worker::TaskPtr task, size_t part,
                      const Header& header)
        : Outgoing({task->push_rank, true, task->step, task->sequence, header.part_offset}, header, nullptr,
                   0),
          worker_(worker),
          serve_(serve),
          task_(std::move(task)),
          part_(part) {}

    void sent() override {
        worker_.on_sent(task_, part_);
        serve_(task_, part_);
    }

  private:
    Worker& worker_;
    const Worker::ServeLocally& serve_;
    const Worker::TaskPtr task_;
    const size_t part_;
};

// The memory must hold every part that this worker `uses`, and nothing beyond the tensor.
template <typename Byte, typename Uses>
void check_span(const Span<Byte>& span, const char* which, const Catalog::Entry& entry, Uses uses) {
    uint64_t begin = entry.tensor->num_bytes, end = 0;
    for (const Part& part : entry.layout->parts()) {
        if (part.length == 0 || !uses(part)) continue;
        begin = std::min(begin, part.offset);
        end = std::max(end, part.offset + part.length);
    }
    const uint64_t num_declared = entry.tensor->num_bytes;
    const bool is_inside = span.num_bytes <= num_declared && span.begin <= num_declared - span.num_bytes;
    const bool holds_all = begin >= end || (span.begin <= begin && end <= span.end());
    const auto tensor = [&] { return "tensor '" + entry.tensor->name + "'"; };
    if (!is_inside || !holds_all)
        throw std::invalid_argument(tensor() + " is declared with " + std::to_string(num_declared) +
                                    " bytes, but its " + which + " has " + std::to_string(span.num_bytes) +
                                    ", from byte " + std::to_string(span.begin) + " on");
    if (begin < end && span.data == nullptr)
        throw std::invalid_argument(tensor() + ": its " + which + " has " + std::to_string(span.num_bytes) +
                                    " bytes at address 0");
}

// The same for memory that has the parts as they travel.
void check_coded(const Submission& submission, const Catalog::Entry& entry) {
    const Coding& coding = entry.tensor->coding;
    const std::string tensor = "tensor '" + entry.tensor->name + "'";
    if (!coding || coding.has_agreed_scale)
        throw std::invalid_argument(tensor +
                                    " cannot come encoded: it has no codec, or one with an agreed scale");
    uint64_t num_bytes = 0;
    for (const Part& part : entry.layout->parts()) {
        if (coding.push_bytes(part) != coding.pull_bytes(part))
            throw std::invalid_argument(tensor + " cannot come encoded: its sums have another length");
        num_bytes += coding.push_bytes(part);
    }
    const auto check = [&](const auto& span) {
        if (span.num_bytes != num_bytes || span.data == nullptr)
            throw std::invalid_argument(
                tensor + " has " + std::to_string(num_bytes) + " bytes when it is encoded for step " +
                std::to_string(submission.step) + ", but its memory has " + std::to_string(span.num_bytes));
    };
    check(submission.source);
    check(submission.destination);
}

}  // namespace

std::vector<Worker::TaskPtr> Worker::submit(const std::vector<Submission>& submissions) {
    std::vector<Catalog::Entry> entries;
    for (const Submission& each : submissions) {
        entries.push_back(catalog_.find(each.tensor, each.step));
        check(each, entries.back());
    }
    std::vector<TaskPtr> tasks, done;
    std::unique_lock lock(mutex_);
    check_turns(submissions, entries);
    for (const Submission& each : submissions) catalog_.reach(each.tensor, each.step);
    for (size_t i = 0; i < submissions.size(); ++i) {
        const Catalog::Entry& entry = entries[i];
        tasks.emplace_back(new Task(submissions[i], *entry.tensor, entry.layout, member_, next_sequence_++),
                           LeaveToMaker());
        if (abandoned_)
            tasks.back()->fail(*abandoned_);
        else if (!begin(tasks.back()))
            done.push_back(tasks.back());
    }
    const auto started = start_ready();
    lock.unlock();
    for (const TaskPtr& task : done) task->complete();
    send(started);
    return tasks;
}

void Worker::set_credit(int64_t from_step, uint64_t credit_bytes) {
    std::unique_lock lock(mutex_);
    queue_.set_credit(from_step, credit_bytes);
    const auto started = start_ready();
    lock.unlock();
    send(started);
}

void Worker::wake(const TaskPtr& task) {
    std::unique_lock lock(mutex_);
    if (abandoned_ || !task->may_start) return;
    offer(task);
    const auto started = start_ready();
    lock.unlock();
    send(started);
}

void Worker::set_trace(int64_t first_step, int64_t last_step, size_t max_records) {
    const std::lock_guard lock(mutex_);
    trace_.set_window(first_step, last_step, max_records);
}

std::vector<Trace::Record> Worker::take_trace() {
    const std::lock_guard lock(mutex_);
    return trace_.take();
}

Worker::Counters Worker::counters() const {
    const std::lock_guard lock(mutex_);
    return {num_tasks_, queue_.in_flight_bytes(), queue_.peak_in_flight_bytes()};
}

std::byte* Worker::accept_sum(const Header& header, size_t part) {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return nullptr;
    const TaskPtr& task = task_of(header, part, false);
    task->parts[part].is_receiving = true;
    if (!task->declared.coding || task->is_coded)
        return task->destination.at(task->extent(part).offset + header.chunk_offset);
    BufferPool::Buffer& encoded = task->parts[part].encoded_sum;
    if (!encoded) encoded = BufferPool::get(pool_, task->pull_bytes(part));
    return encoded.data() + header.chunk_offset;
}

void Worker::deliver_sum(const Header& header, size_t part) {
    TaskPtr finished;
    BufferPool::Buffer encoded;
    {
        const std::lock_guard lock(mutex_);
        if (abandoned_) return;
        const TaskPtr& task = task_of(header, part, true);
        Task::Progress& progress = task->parts[part];
        progress.is_receiving = false;
        progress.received += header.payload_bytes;
        if (progress.received < task->pull_bytes(part)) return;
        finished = task;
        encoded = std::move(progress.encoded_sum);
    }
    if (finished->declared.coding) {
        const std::byte* sum =
            encoded ? encoded.data() : finished->destination.at(finished->extent(part).offset);
        if (!finished->declared.coding.pull->is_valid(sum, header.part_length / sizeof(float)))
            throw ProtocolError("a sum that its codec cannot have made", header.tensor, header.step);
        if (encoded) finished->decode(part, sum);
    }
    take_answer(finished, part, FrameKind::sum);
}

void Worker::deliver_acknowledge(const Header& header, size_t part) {
    TaskPtr task;
    {
        const std::lock_guard lock(mutex_);
        if (abandoned_) return;
        task = task_of(header, part, false);
        const bool wants_sum = task->layout->parts()[part].is_sent_sum(member_) && !task->is_unread;
        if (header.kind == FrameKind::acknowledge && wants_sum)
            throw ProtocolError("an answer without the sum", header.tensor, header.step);
        task->parts[part].received = task->pull_bytes(part);  // so that a second one is out of turn
    }
    if (header.kind == FrameKind::nothing) task->set_empty();
    const Part& shape = task->layout->parts()[part];
    const std::byte* source = task->source.at(shape.offset);
    std::byte* destination = task->destination.at(shape.offset);
    if (shape.writer == member_ && shape.reads(member_) && source != destination)
        std::memcpy(destination, source, shape.length);
    take_answer(task, part, header.kind);
}

void Worker::take_answer(const TaskPtr& task, size_t part, FrameKind kind) {
    if (topology_.relays(task->layout->parts()[part], member_))
        pass_on_(task, part, kind);
    else
        finish(task, part);
}

void Worker::deliver_late(const Header& header, std::vector<int32_t> missing) {
    TaskPtr task;
    {
        const std::lock_guard lock(mutex_);
        const auto found = records_.find(header.tensor);
        if (found != records_.end()) task = found->second.task;
    }
    // It may have crossed with the answer.
    if (task && task->step == header.step) task->set_missing(header.part_offset, std::move(missing));
}

void Worker::deliver_without(const Header& header, size_t part, const std::vector<int32_t>& workers) {
    const std::lock_guard lock(mutex_);
    if (!abandoned_) task_of(header, part, false)->add_without(workers);
}

void Worker::on_sent(const TaskPtr& task, size_t part) {
    const Part& shape = task->layout->parts()[part];
    std::unique_lock lock(mutex_);
    if (abandoned_) return;
    task->parts[part].state = PartState::sent;
    trace_.add(TraceEvent::sent, task->tensor, task->step, shape.offset, shape.length);
    queue_.give_back(task->push_bytes(part));
    const auto started = start_ready();
    lock.unlock();
    send(started);
}

void Worker::finish(const TaskPtr& task, size_t part) {
    const Part& shape = task->layout->parts()[part];
    task->set_missing(shape.offset, {});
    std::unique_lock lock(mutex_);
    if (abandoned_) return;
    if (task->pieces) {
        const auto [offset, length] = task->extent(part);
        task->pieces->arrive(offset, length);
    }
    task->arrive(part);
    task->parts[part].state = PartState::finished;
    trace_.add(TraceEvent::finish, task->tensor, task->step, shape.offset, shape.length);
    count_down(task, std::move(lock));
}

void Worker::deliver_measure(const Header& header, size_t part, const Measure& measure) {
    TaskPtr task;
    {
        const std::lock_guard lock(mutex_);
        const auto found = records_.find(header.tensor);
        if (found != records_.end()) task = found->second.task;
    }
    if (task && task->step == header.step && task->is_measured) take_measure(task, part, measure);
}

void Worker::take_measure(const TaskPtr& task, size_t part, const Measure& measure) {
    std::unique_lock lock(mutex_);
    if (abandoned_ || !task->is_measured) return;
    if (std::exchange(task->parts[part].is_measured, true))
        throw ProtocolError("a second measure of a part", task->tensor, task->step);
    task->set_measure(part, measure);
    count_down(task, std::move(lock));
}

void Worker::count_down(const TaskPtr& task, std::unique_lock<std::mutex> lock) {
    const bool is_over = --task->num_unfinished == 0;
    if (is_over) {
        trace_.add(TraceEvent::done, task->tensor, task->step, 0, task->declared.num_bytes);
        records_[task->tensor].task = nullptr;
        --num_tasks_;
        for (const TaskPtr& follower : std::exchange(task->followers, {})) make_ready(follower);
    }
    const auto started = start_ready();
    lock.unlock();
    if (is_over) task->complete();
    send(started);
}

void Worker::send_encoded(const TaskPtr& task, size_t part) {
    const Part& shape = task->layout->parts()[part];
    BufferPool::Buffer encoded = BufferPool::get(pool_, task->push_bytes(part));
    task->encode(part, encoded.data());
    const Header header = header_of(*task, shape, member_, epoch_);
    peers_.send(shape.server, part,
                std::make_unique<Contribution>(*this, task, part, header, std::move(encoded)));
}

bool Worker::needs(int32_t member) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [tensor, record] : records_) {
        if (!record.task) continue;
        for (size_t part = 0; part < record.task->parts.size(); ++part) {
            const Task::Progress& progress = record.task->parts[part];
            const Part& shape = record.task->layout->parts()[part];
            const bool wants_measure = record.task->is_measured && shape.length > 0;
            if (wants_measure && !progress.is_measured && shape.server == member) return true;
            // A relay that has the answer no longer needs the server, even while it passes it on.
            if (progress.state != PartState::finished && progress.received < shape.length &&
                topology_.answerer(shape, member_) == member)
                return true;
        }
    }
    return false;
}

std::vector<Worker::TaskPtr> Worker::abandon(const Failure& reason) {
    const std::lock_guard lock(mutex_);
    std::vector<TaskPtr> tasks;
    if (abandoned_) return tasks;
    abandoned_ = reason;
    for (auto& [tensor, record] : records_)
        if (record.task) tasks.push_back(std::exchange(record.task, nullptr));
    num_tasks_ = 0;
    queue_.clear();
    return tasks;
}

void Worker::check(const Submission& submission, const Catalog::Entry& entry) const {
    if (entry.tensor == nullptr)
        throw std::invalid_argument("tensor " + std::to_string(submission.tensor) + " is not declared");
    if (entry.layout == nullptr)
        throw std::invalid_argument("tensor '" + entry.tensor->name + "' has no layout for step " +
                                    std::to_string(submission.step));
    if (entry.tensor->coding && submission.reduction > Reduction::average)
        throw std::invalid_argument("tensor '" + entry.tensor->name +
                                    "' is encoded: it can be summed or averaged");
    if (entry.tensor->coding.has_agreed_scale && submission.scale == nullptr)
        throw std::invalid_argument("tensor '" + entry.tensor->name +
                                    "' needs a scale that the workers agree on");
    if (entry.tensor->staleness && submission.reduction > Reduction::average)
        throw std::invalid_argument("tensor '" + entry.tensor->name +
                                    "' is a running total: it can be summed or averaged");
    if (submission.is_measured) check_measured(*entry.tensor, *entry.layout);
    if (submission.is_coded) {
        check_coded(submission, entry);
    } else {
        check_span(submission.source, "source", entry,
                   [&](const Part& part) { return part.writes(member_) && !submission.is_absent; });
        check_span(submission.destination, "destination", entry,
                   [&](const Part& part) { return part.reads(member_); });
    }
    for (const Part& part : entry.layout->parts())
        if (submission.is_absent && part.writer == member_)
            throw std::invalid_argument("tensor '" + entry.tensor->name +
                                        "': its only writer cannot be absent");
    for (const Part& part : entry.layout->parts())
        for (const int32_t needed : {topology_.next_hop(part, member_), topology_.answerer(part, member_)})
            if (part.contributes(member_) && !peers_.is_known(needed))
                throw std::invalid_argument("tensor '" + entry.tensor->name + "' is served by member " +
                                            std::to_string(needed) + ", which is not attached");
}

void Worker::check_measured(const Tensor& tensor, const Layout& layout) const {
    const auto is_sum = [&](const Part& part) {
        const bool is_for_all = part.writer == kEveryone && part.reader == kEveryone;
        return is_for_all && (!tensor.coding.has_agreed_scale || part.server < topology_.num_workers());
    };
    if (tensor.gathers_otherwise() || !std::ranges::all_of(layout.parts(), is_sum))
        throw std::invalid_argument(
            "tensor '" + tensor.name +
            "' cannot be measured: its servers do not have the sums that workers get");
}

void Worker::check_turns(const std::vector<Submission>& submissions,
                         const std::vector<Catalog::Entry>& entries) const {
    for (size_t i = 0; i < submissions.size(); ++i) {
        const auto [tensor, step] = std::pair(submissions[i].tensor, submissions[i].step);
        const auto where = [&] {
            return "tensor '" + entries[i].tensor->name + "' of step " + std::to_string(step) + ": ";
        };
        if (std::any_of(submissions.begin(), submissions.begin() + static_cast<std::ptrdiff_t>(i),
                        [&](const Submission& earlier) { return earlier.tensor == tensor; }))
            throw std::invalid_argument(where() + "it is submitted twice at once");
        const auto found = records_.find(tensor);
        if (found == records_.end()) continue;
        const Record& record = found->second;
        if (record.task || step <= record.latest_step)
            throw std::invalid_argument(where() + "step " + std::to_string(record.latest_step) +
                                        (record.task ? " is still under way" : " has been before it"));
    }
}

bool Worker::begin(const TaskPtr& task) {
    Record& record = records_[task->tensor];
    record.latest_step = task->step;
    if (task->declared.coding && !task->is_coded && !record.memory)
        record.memory =
            std::make_shared<CodingMemory>(task->declared.coding, task->declared.num_bytes / sizeof(float));
    task->memory = record.memory;
    if (task->num_unfinished == 0) {
        trace_.add(TraceEvent::done, task->tensor, task->step, 0, task->declared.num_bytes);
        return false;
    }
    record.task = task;
    ++num_tasks_;
    if (task->after && task->after->num_unfinished > 0)
        task->after->followers.push_back(task);
    else
        make_ready(task);
    return true;
}

void Worker::make_ready(const TaskPtr& task) {
    task->may_start = true;
    offer(task);
}

void Worker::offer(const TaskPtr& task) {
    for (size_t& part = task->num_offered; part < task->parts.size(); ++part) {
        const Part& shape = task->layout->parts()[part];
        if (task->pieces) {
            const auto [offset, length] = task->extent(part);
            if (offset + length > task->pieces->ready_bytes()) return;
        }
        if (task->parts[part].state == PartState::finished) continue;
        trace_.add(TraceEvent::ready, task->tensor, task->step, shape.offset, shape.length);
        queue_.add(task, part);
    }
}

std::vector<StartQueue::ReadyPart> Worker::start_ready() {
    std::vector<StartQueue::ReadyPart> started;
    while (auto next = queue_.start_next()) {
        const Task& task = *next->task;
        const Part& shape = task.layout->parts()[next->part];
        next->task->parts[next->part].state = PartState::started;
        trace_.add(TraceEvent::start, task.tensor, task.step, shape.offset, shape.length);
        started.push_back(std::move(*next));
    }
    return started;
}

const Worker::TaskPtr& Worker::task_of(const Header& header, size_t part, bool is_receiving) const {
    const auto found = records_.find(header.tensor);
    if (found == records_.end() || !found->second.task || found->second.task->step != header.step)
        throw ProtocolError("an answer that nothing here waits for", header.tensor, header.step);
    const Task::Progress& progress = found->second.task->parts[part];
    if (progress.state != PartState::sent || progress.received != header.chunk_offset ||
        progress.is_receiving != is_receiving)
        throw ProtocolError("an answer out of turn", header.tensor, header.step);
    return found->second.task;
}

void Worker::send(const std::vector<StartQueue::ReadyPart>& started) {
    std::vector<Peers::Parcel> parcels;
    for (const auto& [task, index] : started) {
        const Part& part = task->layout->parts()[index];
        Header header = header_of(*task, part, member_, epoch_);
        std::unique_ptr<Outgoing> outgoing;
        const int32_t hop = topology_.next_hop(part, member_);
        // A relay has the sum for others of its host, too.
        if (task->is_unread && hop == part.server) header.flags |= kUnread;
        const bool is_encoded_first =
            task->declared.coding && !task->is_coded && header.kind == FrameKind::push && hop != member_;
        if (hop == member_)
            outgoing = std::make_unique<LocalContribution>(*this, serve_locally_, task, index, header);
        else if (is_encoded_first)
            outgoing = std::make_unique<Encoding>(*this, task, index, header);
        else
            outgoing = std::make_unique<Contribution>(*this, task, index, header);
        parcels.push_back({is_encoded_first ? member_ : hop, index, std::move(outgoing)});
    }
    peers_.send(std::move(parcels));
}

}  // namespace legato
