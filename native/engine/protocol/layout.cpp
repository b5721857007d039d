#include "engine/protocol/layout.hpp"

#include <algorithm>
#include <utility>

namespace legato {

Layout::Layout(int64_t from_step, std::vector<Part> parts, size_t num_workers)
    : from_step_(from_step), parts_(std::move(parts)), contributions_(parts_.size(), num_workers) {}

std::shared_ptr<std::vector<float>> Layout::owed(size_t part) const {
    owed_.resize(parts_.size());
    if (!owed_[part]) owed_[part] = std::make_shared<std::vector<float>>();
    return owed_[part];
}

std::optional<size_t> Layout::find(uint64_t offset, uint64_t length) const {
    // Empty parts share their offset with the part after them.
    const auto key = std::pair(offset, length);
    const auto less = [](const Part& part, const auto& key) {
        return std::pair(part.offset, part.length) < key;
    };
    const auto found = std::lower_bound(parts_.begin(), parts_.end(), key, less);
    if (found == parts_.end() || found->offset != offset || found->length != length) return std::nullopt;
    return static_cast<size_t>(found - parts_.begin());
}

}  // namespace legato
