// The way from a joint member to itself: a contribution is summed straight from the worker's memory, in its
// turn on an I/O thread.
#pragma once

#include "engine/net/link.hpp"

namespace legato {

class LocalLink final : public Link {
  public:
    using Link::Link;

    // One part: `sent` is what hands it to the server's side.
    bool service() override {
        const auto part = queue().pop();
        if (part) part->sent();
        return part != nullptr;
    }
    void leave() override { close(); }
    void close() override { is_closed_ = true; }
    bool is_closed() const override { return is_closed_; }

  private:
    bool is_closed_ = false;
};

}  // namespace legato
