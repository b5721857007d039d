// The way to one member: a queue of what is to be sent there, and a turn on one I/O thread to send it.
//
// Three kinds exist: a connection (connection.hpp), memory shared with a member on the same host
// (shared_link.hpp), and the way from a joint member to itself (local_link.hpp).
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "engine/net/send_queue.hpp"

namespace legato {

class Link;

// Whoever gives links their turns: an I/O thread.
class LinkWaker {
  public:
    virtual ~LinkWaker() = default;
    // Give these links, which are all its own, a turn soon. From any thread.
    virtual void wake(std::span<Link* const> links) = 0;
};

class Link {
  public:
    Link(LinkWaker& waker, int32_t peer) : waker_(waker), peer_(peer) {}
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int32_t peer() const { return peer_; }
    // Whether the peer runs on this host, and may want this very core.
    virtual bool is_neighbour() const { return false; }

    // From any thread.
    void send(ControlFrame frame) {
        if (queue_.push(std::move(frame))) wake();
    }
    // Whether the link must be woken for it, which is the caller's to do.
    bool push(std::unique_ptr<Outgoing> part) { return queue_.push(std::move(part)); }
    void wake() {
        Link* const self = this;
        waker_.wake({&self, 1});
    }
    LinkWaker& waker() const { return waker_; }

    // The rest only on the link's I/O thread.

    // What epoll shall watch, or -1, and for which events.
    virtual int descriptor() const { return -1; }
    virtual uint32_t events() const { return EPOLLIN | EPOLLOUT | EPOLLRDHUP; }
    // What epoll has seen.
    virtual void notice(uint32_t /*events*/) {}
    // Do a bounded amount of work; whether there is more that can be done at once.
    virtual bool service() = 0;
    // A fifth of the heartbeat time has passed.
    virtual void tick() {}
    // Let go of all memory that belongs to tasks; see the note in engine.hpp.
    virtual void abandon() { queue_.abandon(); }
    // Send what is queued, say goodbye, and close when the peer has closed too.
    virtual void leave() = 0;
    // Close now, whatever is left.
    virtual void close() = 0;
    virtual bool is_closed() const = 0;

  protected:
    SendQueue& queue() { return queue_; }

  private:
    LinkWaker& waker_;
    const int32_t peer_;
    SendQueue queue_;

    friend class IoThread;
    bool has_turn_ = false;  // it is in its I/O thread's list already
};

}  // namespace legato
