// Every frame passes here: it is checked against what has been declared, and goes to the side it is for.
//
// Nothing that a peer sends is believed. Tensor, dtype, step, part, chunk, sender and direction are compared
// with this member's own catalog before any memory is touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/net/membership.hpp"
#include "engine/net/peers.hpp"
#include "engine/protocol/catalog.hpp"
#include "engine/protocol/frame_handler.hpp"
#include "engine/protocol/topology.hpp"
#include "engine/server/server.hpp"
#include "engine/worker/worker.hpp"

namespace legato {

class Router final : public FrameHandler {
  public:
    Router(int32_t member, const Topology& topology, Catalog& catalog, Peers& peers, Worker& worker,
           Server& server, Membership& membership)
        : member_(member),
          topology_(topology),
          catalog_(catalog),
          peers_(peers),
          worker_(worker),
          server_(server),
          membership_(membership) {}

    std::byte* accept(const Header& header) override;
    void deliver(const Header& header, const std::byte* payload) override;

    // The engine is over: data is no longer looked at.
    void abandon() { is_abandoned_ = true; }

  private:
    struct Place {
        const Tensor& tensor;
        std::shared_ptr<const Layout> layout;
        size_t index;
        const Part& part() const { return layout->parts()[index]; }
    };

    Place find(const Header& header) const;
    void check_contribution(const Header& header, const Part& part) const;
    void check_answer(const Header& header, const Part& part) const;
    static void check_control(const Header& header);
    void add_contribution(const Header& header, const std::byte* payload);
    void hear_abort(const Header& header, const std::byte* payload);
    void hear_measure(const Header& header, const std::byte* payload);
    void hear_without(const Header& header, const std::byte* payload);
    void hear_late(const Header& header, const std::byte* payload);

    const int32_t member_;
    const Topology& topology_;
    Catalog& catalog_;
    Peers& peers_;
    Worker& worker_;
    Server& server_;
    Membership& membership_;
    std::atomic<bool> is_abandoned_ = false;
};

}  // namespace legato
