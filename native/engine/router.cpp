#include "engine/router.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/protocol/failure.hpp"

namespace legato {

namespace {

bool is_data(FrameKind kind) { return kind <= FrameKind::acknowledge || kind == FrameKind::nothing; }

[[noreturn]] void refuse(const Header& header, const char* why) {
    throw ProtocolError(why, header.tensor, header.step);
}

// The chunk lies in the part, of which `num_bytes` travel, and on items; `push` and `sum` carry bytes, their
// empty twins none.
void check_chunk(const Header& header, uint64_t num_bytes) {
    const bool is_empty = header.kind == FrameKind::ready || header.kind == FrameKind::acknowledge ||
                          header.kind == FrameKind::nothing;
    const uint64_t item = header.codec == CodecId::raw ? item_bytes(header.dtype) : 1;
    if (is_empty != (header.payload_bytes == 0)) refuse(header, "a payload where none belongs, or none");
    if (is_empty && header.chunk_offset != 0) refuse(header, "an empty frame with an offset");
    if (header.chunk_offset > num_bytes || header.payload_bytes > num_bytes - header.chunk_offset)
        refuse(header, "a chunk beyond its part");
    if (header.chunk_offset % item != 0 || header.payload_bytes % item != 0)
        refuse(header, "a chunk that cuts an item");
}

std::vector<int32_t> workers_in(const Header& header, const std::byte* payload) {
    std::vector<int32_t> workers(header.payload_bytes / sizeof(int32_t));
    std::copy_n(payload, header.payload_bytes, reinterpret_cast<std::byte*>(workers.data()));
    return workers;
}

}  // namespace

std::byte* Router::accept(const Header& header) {
    if (!is_data(header.kind)) {
        check_control(header);
        return nullptr;
    }
    if (is_abandoned_) return nullptr;
    const Place place = find(header);
    const Coding& coding = place.tensor.coding;
    const bool is_contribution = header.kind == FrameKind::push || header.kind == FrameKind::ready;
    if (header.codec != (is_contribution ? coding.push_id() : coding.pull_id()))
        refuse(header, "another codec than declared");
    check_chunk(header, is_contribution ? coding.push_bytes(place.part()) : coding.pull_bytes(place.part()));
    if (is_contribution) {
        check_contribution(header, place.part());
        return nullptr;
    }
    check_answer(header, place.part());
    return header.kind == FrameKind::sum ? worker_.accept_sum(header, place.index) : nullptr;
}

void Router::deliver(const Header& header, const std::byte* payload) {
    switch (header.kind) {
        case FrameKind::push:
        case FrameKind::ready:
            return add_contribution(header, payload);
        case FrameKind::sum:
            if (!is_abandoned_) worker_.deliver_sum(header, find(header).index);
            return;
        case FrameKind::acknowledge:
        case FrameKind::nothing:
            if (!is_abandoned_) worker_.deliver_acknowledge(header, find(header).index);
            return;
        case FrameKind::late:
            return hear_late(header, payload);
        case FrameKind::without:
            return hear_without(header, payload);
        case FrameKind::measure:
            return hear_measure(header, payload);
        case FrameKind::abort:
            return hear_abort(header, payload);
        case FrameKind::heartbeat:
        case FrameKind::goodbye:
            return;
    }
}

Router::Place Router::find(const Header& header) const {
    Catalog::Entry entry = catalog_.find(header.tensor, header.step);
    if (entry.tensor == nullptr) refuse(header, "a tensor that is not declared");
    if (entry.layout == nullptr) refuse(header, "a step that the tensor is not laid out for");
    if (entry.tensor->dtype != header.dtype) refuse(header, "another dtype than declared");
    const auto index = entry.layout->find(header.part_offset, header.part_length);
    if (!index) refuse(header, "a part that is not in the layout");
    return {*entry.tensor, std::move(entry.layout), *index};
}

void Router::check_contribution(const Header& header, const Part& part) const {
    const auto worker = static_cast<int32_t>(header.sender);
    if (header.flags > (kMeasured | kUnread)) refuse(header, "an unknown flag");
    if (part.server != member_ && !topology_.relays(part, member_))
        refuse(header, "a contribution to a part that is served elsewhere");
    // A part's only writer cannot have nothing to write.
    const bool has_share =
        header.kind == FrameKind::push ? part.writes(worker) : part.reads(worker) && part.writer != worker;
    if (!topology_.sends_to(part, worker, member_) || !has_share)
        refuse(header, "a contribution that is not the sender's to make");
}

void Router::check_answer(const Header& header, const Part& part) const {
    if (member_ >= topology_.num_workers() || topology_.answerer(part, member_) != header.sender)
        refuse(header, "an answer from a member that does not serve the part");
    const bool fits = header.kind == FrameKind::nothing || header.kind == FrameKind::without
                          ? !part.has_one_writer()
                          // The worker knows whether it does without the sum this time.
                          : header.kind == FrameKind::acknowledge || part.is_sent_sum(member_);
    if (!part.contributes(member_) || !fits) refuse(header, "an answer that is not for this member");
}

void Router::check_control(const Header& header) {
    const bool names_workers = header.kind == FrameKind::late || header.kind == FrameKind::without;
    const bool has_payload =
        names_workers || header.kind == FrameKind::measure || header.kind == FrameKind::abort;
    if (!has_payload && header.payload_bytes != 0) refuse(header, "a payload where none belongs");
    if (names_workers && header.payload_bytes % sizeof(int32_t) != 0)
        refuse(header, "a list of workers that is cut off");
    if (header.kind == FrameKind::measure && header.payload_bytes != sizeof(Measure))
        refuse(header, "a measure that is cut off");
    if (header.kind == FrameKind::abort && header.flags > static_cast<uint8_t>(FailureKind::corrupted))
        refuse(header, "an unknown kind of failure");
}

void Router::add_contribution(const Header& header, const std::byte* payload) {
    if (is_abandoned_) return;
    const Place place = find(header);
    server_.add(header, place.tensor, *place.layout, place.index, payload);
    if (header.chunk_offset != 0) return;
    for (int32_t gone : peers_.departed())
        if (server_.needs(gone)) membership_.on_missed(gone);
}

void Router::hear_abort(const Header& header, const std::byte* payload) {
    Failure failure;
    failure.kind = static_cast<FailureKind>(header.flags);
    failure.rank = static_cast<int32_t>(static_cast<int64_t>(header.part_offset));
    failure.tensor = static_cast<int32_t>(header.tensor);
    failure.step = header.step;
    failure.message.assign(reinterpret_cast<const char*>(payload), header.payload_bytes);
    membership_.on_abort(header.sender, failure);
}

void Router::hear_without(const Header& header, const std::byte* payload) {
    if (is_abandoned_) return;
    const Place place = find(header);
    check_answer(header, place.part());
    worker_.deliver_without(header, place.index, workers_in(header, payload));
}

void Router::hear_measure(const Header& header, const std::byte* payload) {
    if (is_abandoned_) return;
    const Place place = find(header);
    if (member_ >= topology_.num_workers() || place.part().server != header.sender)
        refuse(header, "a measure from a member that does not serve the part");
    Measure measure;
    std::memcpy(&measure, payload, sizeof measure);
    worker_.deliver_measure(header, place.index, measure);
}

void Router::hear_late(const Header& header, const std::byte* payload) {
    std::vector<int32_t> missing = workers_in(header, payload);
    // It may speak of a part that is over, or of one that was never here: then there is nobody to tell.
    const Catalog::Entry entry = catalog_.find(header.tensor, header.step);
    const auto index =
        entry.layout ? entry.layout->find(header.part_offset, header.part_length) : std::nullopt;
    if (!index || is_abandoned_) return;
    const Part& part = entry.layout->parts()[*index];
    server_.hear_late(header, part, missing);
    if (part.server != member_) worker_.deliver_late(header, std::move(missing));
}

}  // namespace legato
