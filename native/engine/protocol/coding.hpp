// The stage between a tensor's items and the payload of its frames, chosen when the tensor is declared.
//
// Note: where codecs act. A part is encoded as a whole and for itself, on an I/O thread: by each worker
// before it is pushed, and by its server, once all contributions have been decoded and added up, before it is
// pulled. A worker's parts may also come encoded, and their sums stay so (Submission::is_coded): then an
// accelerator has made the same bytes, decodes the sums, and remembers what its encodings lose. The member
// that serves a part treats its own contribution and its own copy of the sum like everybody else's. So the
// result is the same on all ranks and does not depend on who serves what. Contributions are added in the
// order of ranks, not of arrival, so that the result is the same in every run too.
//
// Note: error feedback. What an encoding loses is remembered where it was lost, and added before the next
// one: by the worker for the whole tensor, whatever the parts; by the server, for codecs that lose something
// of a sum, with the layout, so that a new plan begins with nothing owed. What is not finite is not
// remembered: one overflow must not spoil all steps after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/protocol/layout.hpp"
#include "kernels/codec.hpp"

namespace legato {

struct Coding {
    CodecPtr push = nullptr;  // of contributions; null: items travel as they are, both ways
    CodecPtr pull = nullptr;  // of sums
    bool feeds_back = false;  // a worker remembers what its encodings lose
    bool server_feeds_back = false;
    float momentum = 0.0F;          // Nesterov's, of each worker's items before they are encoded; 0: none
    bool has_agreed_scale = false;  // workers bring a scale that they have agreed on

    explicit operator bool() const { return push != nullptr; }
    uint64_t push_bytes(const Part& part) const { return bytes(push, part); }
    uint64_t pull_bytes(const Part& part) const { return bytes(pull, part); }
    CodecId push_id() const { return push ? push->id : CodecId::raw; }
    CodecId pull_id() const { return pull ? pull->id : CodecId::raw; }

  private:
    static uint64_t bytes(const CodecPtr& codec, const Part& part) {
        return codec ? codec->encoded_bytes(part.length / sizeof(float)) : part.length;
    }
};

// Chance depends on where the items are; the same on all members.
uint64_t place_of(uint32_t tensor, int64_t step, uint64_t offset);

// What a worker remembers of one tensor from step to step. Parts touch their own range alone.
struct CodingMemory {
    CodingMemory(const Coding& coding, size_t num_items)
        : residual(coding.feeds_back ? num_items : 0), momentum(coding.momentum > 0 ? num_items : 0) {}
    std::vector<float> residual;
    std::vector<float> momentum;
};

// Encode the items of a worker's part, whose first is item `first` of its tensor.
void encode_contribution(const Coding& coding, CodingMemory& memory, std::byte* output,
                         const std::byte* items, size_t first, size_t num_items, const CodecContext& context);

// Encode items, plus what is owed from before, if anything; `owed` is what that loses in turn.
void encode_owing(const Codec& codec, std::byte* output, const std::byte* items, float* owed,
                  size_t num_items, const CodecContext& context);

}  // namespace legato
