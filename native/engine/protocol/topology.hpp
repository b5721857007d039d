// Which members share a host, and who speaks for it.
//
// Note: once per host. A part that everyone writes and reads comes together in two steps, so that it crosses
// the network once per host however many workers run there:
//
//     worker ──┐
//     worker ──┼─► relay ──one contribution──► server ──one sum──► relay ──► the workers of its host
//     worker ──┘                                  ▲
//                           the server's own workers, straight
//
// On a host with several workers one of them relays the part: it sums what they contribute (to a slot like a
// server's) and sends it on when each of them has. To the server the relay stands for exactly the workers of
// its host, so contributions are still counted by worker: none can be missed or counted twice. The sum comes
// to the relay's own destination, and the others get it from there. Relays follow the servers' places on
// their hosts, so that work is spread over a host's workers as it is over the servers. All other parts go
// straight: one of their ends is a single worker, or they travel encoded. f16 and bf16 are rounded once on
// each host and once at the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/protocol/layout.hpp"

namespace legato {

class Topology {
  public:
    // The host of each member; none at all: each has its own. Throws std::invalid_argument for another number
    // of hosts. The last workers are learners: they read sums and add nothing to them.
    Topology(int32_t num_workers, int32_t num_members, const std::vector<int32_t>& hosts,
             int32_t num_learners = 0);

    int32_t num_workers() const { return num_workers_; }
    // What an average is divided by. A worker that has nothing to add this time counts; a learner does not.
    int32_t num_averaged() const { return num_workers_ - num_learners_; }
    size_t num_hosts() const { return workers_.size(); }
    bool are_neighbours(int32_t member, int32_t other) const {
        return hosts_[static_cast<size_t>(member)] == hosts_[static_cast<size_t>(other)];
    }

    // Whom a worker hands its contribution to: the part's server, or the relay of its host, which may be
    // itself.
    int32_t next_hop(const Part& part, int32_t worker) const;
    // Whose answer it gets: the server's or, unless it relays the part itself, the relay's.
    int32_t answerer(const Part& part, int32_t worker) const;
    // In whose contribution the server finds the worker's: its own, or the relay's.
    int32_t speaker(const Part& part, int32_t worker) const;
    bool relays(const Part& part, int32_t member) const;
    // Whether a contribution to the part comes from this worker's hands straight to `member`, for itself or
    // its host.
    bool sends_to(const Part& part, int32_t worker, int32_t member) const;

  private:
    const int32_t num_workers_;
    const int32_t num_learners_;
    std::vector<size_t> hosts_;                  // by member
    std::vector<size_t> places_;                 // by member: of a worker, among its host's workers
    std::vector<std::vector<int32_t>> workers_;  // by host
};

}  // namespace legato
