#include "engine/protocol/coding.hpp"

#include <cmath>

#include "kernels/chance.hpp"
#include "kernels/reduce.hpp"

namespace legato {

namespace {

const std::byte* bytes_of(const std::vector<float>& floats) {
    return reinterpret_cast<const std::byte*>(floats.data());
}

float finite(float value) { return std::isfinite(value) ? value : 0.0F; }

// m = mu m + g, and the items become g + mu m.
void accelerate(float* items, float* momentum, float mu, size_t num_items) {
    for (size_t i = 0; i < num_items; ++i) {
        momentum[i] = finite(mu * momentum[i] + items[i]);
        items[i] += mu * momentum[i];
    }
}

}  // namespace

uint64_t place_of(uint32_t tensor, int64_t step, uint64_t offset) {
    return mix(tensor ^ mix(static_cast<uint64_t>(step) ^ mix(offset)));
}

void encode_owing(const Codec& codec, std::byte* output, const std::byte* items, float* owed,
                  size_t num_items, const CodecContext& context) {
    add(DType::f32, owed, items, num_items);
    codec.encode(output, reinterpret_cast<const std::byte*>(owed), num_items, context);
    thread_local std::vector<float> decoded;
    decoded.resize(num_items);
    codec.decode(reinterpret_cast<std::byte*>(decoded.data()), output, num_items, context);
    for (size_t i = 0; i < num_items; ++i) owed[i] = finite(owed[i] - decoded[i]);
}

void encode_contribution(const Coding& coding, CodingMemory& memory, std::byte* output,
                         const std::byte* items, size_t first, size_t num_items,
                         const CodecContext& context) {
    thread_local std::vector<float> accelerated;
    if (!memory.momentum.empty()) {
        accelerated.resize(num_items);
        load(DType::f32, accelerated.data(), items, num_items);
        accelerate(accelerated.data(), memory.momentum.data() + first, coding.momentum, num_items);
        items = bytes_of(accelerated);
    }
    if (memory.residual.empty())
        coding.push->encode(output, items, num_items, context);
    else
        encode_owing(*coding.push, output, items, memory.residual.data() + first, num_items, context);
}

}  // namespace legato
