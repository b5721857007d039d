// What a server says to the workers that contribute to a part.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/net/send_queue.hpp"
#include "engine/protocol/frame.hpp"
#include "engine/server/slot.hpp"
#include "kernels/measure.hpp"

namespace legato {

Header answer_header(const Slot::Origin& origin, FrameKind kind, int32_t member, uint32_t epoch);

// Names workers: those still missing (late), or left out (without); `header` says where.
ControlFrame workers_frame(Header header, const std::vector<int32_t>& workers);

ControlFrame measure_frame(Header header, const Measure& measure);

}  // namespace legato
