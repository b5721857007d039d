// What happens to members as others see it. Called on I/O threads.
#pragma once

#include <cstdint>

#include "engine/protocol/failure.hpp"

namespace legato {

class Membership {
  public:
    virtual ~Membership() = default;

    // The peer has said goodbye on one of its connections.
    virtual void on_goodbye(int32_t peer) = 0;
    // A connection has ended without one.
    virtual void on_lost(const Failure& failure) = 0;
    // The peer says that the job is over, and why.
    virtual void on_abort(int32_t peer, const Failure& failure) = 0;
    // Something needs a member that has left.
    virtual void on_missed(int32_t member) = 0;
    // A connection is closed, for whatever reason.
    virtual void on_closed() = 0;
};

}  // namespace legato
