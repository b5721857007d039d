// Codecs: float32 items in fewer bytes, and back.
//
// Note: what a codec promises. The encoded length follows from the number of items alone, so that it can be
// checked against a declaration before a byte is touched. The same items in the same place give the same
// bytes on every machine. A NaN among the items is never decoded as a number: codecs that keep one scale for
// all items decode every item as NaN then, the others that item. An infinity does the same under a codec with
// a scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/dtype.hpp"

namespace legato {

// Part of the wire protocol.
enum class CodecId : uint8_t { raw = 0, fp16, bf16, onebit, topk, randomk, dithering, int8 };

// What both ends know of an encoding without being told.
struct CodecContext {
    uint64_t place = 0;        // which items these are: tensor, step and part, mixed; equal on all members
    uint32_t contributor = 0;  // whose they are: chance that must not be shared depends on it too
    float scale = 1.0F;        // the largest magnitude among all workers, where they agree on one
};

class Codec {
  public:
    explicit Codec(CodecId id) : id(id) {}
    virtual ~Codec() = default;

    virtual size_t encoded_bytes(size_t num_items) const = 0;
    // Items and bytes may lie at any address; num_items is below 2^32.
    virtual void encode(std::byte* output, const std::byte* items, size_t num_items,
                        const CodecContext& context) const = 0;
    // Of bytes that are valid.
    virtual void decode(std::byte* items, const std::byte* input, size_t num_items,
                        const CodecContext& context) const = 0;
    // Whether `encode` can have made these bytes, as far as memory is concerned.
    virtual bool is_valid(const std::byte* /*input*/, size_t /*num_items*/) const { return true; }

    const CodecId id;
};

using CodecPtr = std::shared_ptr<const Codec>;

// All throw std::invalid_argument for parameters out of range.
CodecPtr raw_codec();
CodecPtr cast_codec(DType dtype);  // f16 or bf16
CodecPtr onebit_codec(bool scaling);
CodecPtr topk_codec(double density);
CodecPtr randomk_codec(double density, uint64_t seed);
enum class DitherLevels : uint8_t { linear, natural };
enum class DitherNorm : uint8_t { max, l2 };
CodecPtr dithering_codec(int num_levels, DitherLevels levels, DitherNorm norm, uint64_t seed);
CodecPtr int8_codec();

// How many of the items a density keeps: the nearest number, at least one.
size_t num_kept(double density, size_t num_items);

}  // namespace legato
