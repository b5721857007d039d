#include "engine/protocol/catalog.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace legato {

void Catalog::declare(Tensor tensor) {
    if (tensor.num_bytes % item_bytes(tensor.dtype) != 0)
        throw std::invalid_argument("tensor '" + tensor.name + "' has " + std::to_string(tensor.num_bytes) +
                                    " bytes, which is no whole number of items");
    if (tensor.coding && tensor.dtype != DType::f32)
        throw std::invalid_argument("tensor '" + tensor.name + "' is " + std::string(name_of(tensor.dtype)) +
                                    ": codecs are for float32");
    if (tensor.staleness && (tensor.coding || *tensor.staleness < 0))
        throw std::invalid_argument("tensor '" + tensor.name +
                                    "': a running total has a staleness of 0 or more, and no codec");
    if (tensor.backups < 0 || tensor.backups >= num_workers_ ||
        (tensor.backups > 0 && (tensor.coding || tensor.staleness)))
        throw std::invalid_argument("tensor '" + tensor.name +
                                    "': backups are fewer than workers, without codec or staleness");
    const std::lock_guard lock(mutex_);
    const uint32_t id = tensor.id;
    const auto [record, is_new] = records_.try_emplace(id, Record{std::move(tensor), -1, {}});
    if (!is_new)
        throw std::invalid_argument("tensor " + std::to_string(id) + " is declared already, as '" +
                                    record->second.tensor.name + "'");
}

void Catalog::lay_out(uint32_t tensor, int64_t from_step, std::vector<Part> parts) {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(tensor);
    if (found == records_.end())
        throw std::invalid_argument("tensor " + std::to_string(tensor) + " is not declared");
    Record& record = found->second;
    check(record.tensor, parts);
    for (Part& part : parts) part.is_direct = record.tensor.coding || record.tensor.gathers_otherwise();
    if (from_step <= record.latest_step)
        throw std::invalid_argument("tensor '" + record.tensor.name + "' has already come to step " +
                                    std::to_string(record.latest_step) + ", so no new layout from step " +
                                    std::to_string(from_step));
    std::erase_if(record.layouts, [&](const auto& layout) { return layout->from_step() >= from_step; });
    record.layouts.push_back(
        std::make_shared<const Layout>(from_step, std::move(parts), static_cast<size_t>(num_workers_)));
    drop_outdated(record);
}

Catalog::Entry Catalog::find(uint32_t tensor, int64_t step) const {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(tensor);
    if (found == records_.end()) return {};
    const Record& record = found->second;
    const size_t index = index_for(record, step);
    if (index == record.layouts.size()) return {&record.tensor, nullptr};
    return {&record.tensor, record.layouts[index]};
}

void Catalog::reach(uint32_t tensor, int64_t step) {
    const std::lock_guard lock(mutex_);
    int64_t& latest = records_.at(tensor).latest_step;
    latest = std::max(latest, step);
}

void Catalog::check(const Tensor& tensor, const std::vector<Part>& parts) const {
    const uint64_t item = item_bytes(tensor.dtype);
    uint64_t end = 0;
    for (const Part& part : parts) {
        const auto refuse = [&](const char* why) {
            throw std::invalid_argument("part at " + std::to_string(part.offset) + " of tensor '" +
                                        tensor.name + "' " + why);
        };
        if (part.offset < end) refuse("overlaps the part before it, or comes after a later one");
        if (part.offset > tensor.num_bytes || part.length > tensor.num_bytes - part.offset)
            refuse("reaches beyond the tensor");
        if (part.offset % item != 0 || part.length % item != 0) refuse("cuts an item");
        if (part.server < 0 || part.server >= num_members_) refuse("has a server that is no member");
        for (const int32_t rank : {part.writer, part.reader})
            if (rank != kEveryone && (rank < 0 || rank >= num_workers_))
                refuse("has a writer or reader that is no worker");
        if (tensor.coding && (part.has_one_writer() || part.reader != kEveryone))
            refuse("is encoded, so everybody must write and read it");
        if (tensor.gathers_otherwise() && (part.has_one_writer() || part.reader != kEveryone))
            refuse("has a staleness or backups, so everybody must write and read it");
        if (tensor.coding && part.length / item >= UINT32_MAX) refuse("is encoded, and too long for that");
        end = part.offset + part.length;
    }
}

size_t Catalog::index_for(const Record& record, int64_t step) {
    const auto& layouts = record.layouts;
    const auto after = std::upper_bound(layouts.begin(), layouts.end(), step,
                                        [](int64_t step, const auto& l) { return step < l->from_step(); });
    return after == layouts.begin() ? layouts.size() : static_cast<size_t>(after - layouts.begin()) - 1;
}

// A worker begins a step of a tensor only after it has finished the one before, which needed every worker. So
// no worker is more than one step behind another, and no more than one layout.
void Catalog::drop_outdated(Record& record) {
    const size_t current = index_for(record, record.latest_step);
    if (current == record.layouts.size() || current < 2) return;
    record.layouts.erase(record.layouts.begin(),
                         record.layouts.begin() + static_cast<std::ptrdiff_t>(current) - 1);
}

}  // namespace legato
