#include "engine/net/peers.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace legato {

void Peers::add(int32_t member, std::vector<std::unique_ptr<Link>> links) {
    const std::lock_guard lock(mutex_);
    Member& entry = members_[static_cast<size_t>(member)];
    if (!entry.links.empty())
        throw std::invalid_argument("member " + std::to_string(member) + " is attached already");
    entry.links = std::move(links);
}

bool Peers::is_known(int32_t member) const {
    const std::lock_guard lock(mutex_);
    return !members_[static_cast<size_t>(member)].links.empty();
}

void Peers::send(int32_t member, size_t part_index, std::unique_ptr<Outgoing> part) {
    Link* link = link_to(member, part_index);
    if (link && link->push(std::move(part))) link->wake();
}

void Peers::send(std::vector<Parcel> parcels) {
    std::vector<Link*> idle;
    for (Parcel& parcel : parcels) {
        Link* link = link_to(parcel.member, parcel.part_index);
        if (link && link->push(std::move(parcel.part))) idle.push_back(link);
    }
    while (!idle.empty()) {
        LinkWaker& waker = idle.front()->waker();
        const auto others =
            std::ranges::stable_partition(idle, [&](const Link* link) { return &link->waker() == &waker; });
        waker.wake({idle.begin(), others.begin()});
        idle.erase(idle.begin(), others.begin());
    }
}

void Peers::send(int32_t member, size_t part_index, ControlFrame frame) {
    if (Link* link = link_to(member, part_index)) link->send(std::move(frame));
}

void Peers::send(int32_t member, ControlFrame frame) {
    if (Link* link = link_to(member, 0)) link->send(std::move(frame));
}

bool Peers::note_goodbye(int32_t member) {
    const std::lock_guard lock(mutex_);
    Member& entry = members_[static_cast<size_t>(member)];
    ++entry.num_goodbyes;
    if (has_left(entry)) has_departed_ = true;
    return has_left(entry);
}

bool Peers::has_left(int32_t member) const {
    const std::lock_guard lock(mutex_);
    return has_left(members_[static_cast<size_t>(member)]);
}

std::vector<int32_t> Peers::departed() const {
    std::vector<int32_t> departed;
    if (!has_departed_) return departed;
    const std::lock_guard lock(mutex_);
    for (size_t member = 0; member < members_.size(); ++member)
        if (has_left(members_[member])) departed.push_back(static_cast<int32_t>(member));
    return departed;
}

std::vector<int32_t> Peers::present() const {
    const std::lock_guard lock(mutex_);
    std::vector<int32_t> present;
    for (size_t member = 0; member < members_.size(); ++member)
        if (members_[member].num_goodbyes < members_[member].links.size())
            present.push_back(static_cast<int32_t>(member));
    return present;
}

Link* Peers::link_to(int32_t member, size_t part_index) const {
    const std::lock_guard lock(mutex_);
    const auto& links = members_[static_cast<size_t>(member)].links;
    return links.empty() ? nullptr : links[part_index % links.size()].get();
}

}  // namespace legato
