#include "engine/protocol/topology.hpp"

#include <map>
#include <stdexcept>

namespace legato {

Topology::Topology(int32_t num_workers, int32_t num_members, const std::vector<int32_t>& hosts,
                   int32_t num_learners)
    : num_workers_(num_workers), num_learners_(num_learners) {
    if (!hosts.empty() && hosts.size() != static_cast<size_t>(num_members))
        throw std::invalid_argument("hosts must have one entry for each member, or none");
    std::map<int32_t, size_t> numbers;
    for (int32_t member = 0; member < num_members; ++member) {
        const int32_t name = hosts.empty() ? member : hosts[static_cast<size_t>(member)];
        const size_t host = numbers.try_emplace(name, numbers.size()).first->second;
        workers_.resize(numbers.size());
        hosts_.push_back(host);
        places_.push_back(member < num_workers ? workers_[host].size() : static_cast<size_t>(member));
        if (member < num_workers) workers_[host].push_back(member);
    }
}

int32_t Topology::next_hop(const Part& part, int32_t worker) const {
    const auto server = static_cast<size_t>(part.server);
    const size_t host = hosts_[static_cast<size_t>(worker)];
    const std::vector<int32_t>& neighbours = workers_[host];
    const bool is_for_all = part.writer == kEveryone && part.reader == kEveryone;
    if (!is_for_all || part.is_direct || hosts_[server] == host || neighbours.size() == 1) return part.server;
    return neighbours[places_[server] % neighbours.size()];
}

int32_t Topology::answerer(const Part& part, int32_t worker) const {
    const int32_t hop = next_hop(part, worker);
    return hop == worker ? part.server : hop;
}

int32_t Topology::speaker(const Part& part, int32_t worker) const {
    const int32_t hop = next_hop(part, worker);
    return hop == part.server ? worker : hop;
}

bool Topology::relays(const Part& part, int32_t member) const {
    return member < num_workers_ && member != part.server && next_hop(part, member) == member;
}

bool Topology::sends_to(const Part& part, int32_t worker, int32_t member) const {
    if (worker >= num_workers_ || !part.contributes(worker)) return false;
    return member == part.server ? speaker(part, worker) == worker : next_hop(part, worker) == member;
}

}  // namespace legato
