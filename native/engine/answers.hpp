// What a server says to the workers that contribute to a part.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/frame.hpp"
#include "engine/send_queue.hpp"
#include "engine/slot.hpp"

namespace legato {

Header answer_header(const Slot::Origin& origin, FrameKind kind, int32_t member, uint32_t epoch);

// These workers are still missing; `header` says where.
ControlFrame late_frame(Header header, const std::vector<int32_t>& missing);

}  // namespace legato
