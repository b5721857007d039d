// The links to every member, and who has left.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/net/link.hpp"

namespace legato {

// Links stay until the engine ends, closed or not, so that nobody who sends has to own one.
class Peers {
  public:
    explicit Peers(int32_t num_members) : members_(static_cast<size_t>(num_members)) {}

    // Throws std::invalid_argument for a member that has links already.
    void add(int32_t member, std::vector<std::unique_ptr<Link>> links);
    bool is_known(int32_t member) const;

    // All chunks of one part, in both directions, take the same link.
    void send(int32_t member, size_t part_index, std::unique_ptr<Outgoing> part);
    struct Parcel {
        int32_t member;
        size_t part_index;
        std::unique_ptr<Outgoing> part;
    };
    // Several parts. No thread is woken before all are in its queues, and each at most once: one that has
    // been woken may take the caller's core at once, and sleep again when it finds nothing more.
    void send(std::vector<Parcel> parcels);
    // Leaves before what is sent for the same part later.
    void send(int32_t member, size_t part_index, ControlFrame frame);
    // On the first link, for what concerns a member and not a part.
    void send(int32_t member, ControlFrame frame);

    // One of its links has said goodbye; true when that was the last one.
    bool note_goodbye(int32_t member);
    bool has_left(int32_t member) const;
    std::vector<int32_t> departed() const;
    // Those that are known and have not left.
    std::vector<int32_t> present() const;

  private:
    struct Member {
        std::vector<std::unique_ptr<Link>> links;
        size_t num_goodbyes = 0;
    };

    static bool has_left(const Member& member) {
        return !member.links.empty() && member.num_goodbyes == member.links.size();
    }
    Link* link_to(int32_t member, size_t part_index) const;

    mutable std::mutex mutex_;
    std::vector<Member> members_;
    std::atomic<bool> has_departed_ = false;  // spares the usual case the lock
};

}  // namespace legato
