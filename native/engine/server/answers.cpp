#include "engine/server/answers.hpp"

#include <algorithm>

namespace legato {

Header answer_header(const Slot::Origin& origin, FrameKind kind, int32_t member, uint32_t epoch) {
    Header header;
    header.kind = kind;
    header.dtype = origin.dtype;
    header.codec = origin.pull_codec;
    header.reduction = origin.reduction;
    header.sender = static_cast<uint16_t>(member);
    header.epoch = epoch;
    header.step = origin.step;
    header.part_offset = origin.part.offset;
    header.part_length = origin.part.length;
    header.tensor = origin.tensor;
    header.rank = origin.pull_rank;
    return header;
}

ControlFrame workers_frame(Header header, const std::vector<int32_t>& workers) {
    const size_t num_bytes = std::min<size_t>(workers.size() * sizeof(int32_t), kMaxControlBytes);
    header.payload_bytes = static_cast<uint32_t>(num_bytes);
    const auto* bytes = reinterpret_cast<const std::byte*>(workers.data());
    return {header, {bytes, bytes + num_bytes}};
}

ControlFrame measure_frame(Header header, const Measure& measure) {
    header.payload_bytes = sizeof measure;
    const auto* bytes = reinterpret_cast<const std::byte*>(&measure);
    return {header, {bytes, bytes + sizeof measure}};
}

}  // namespace legato
