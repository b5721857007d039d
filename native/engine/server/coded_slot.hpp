// The sum of one part that travels encoded; see the notes in coding.hpp.
//
// A contribution is kept until it is whole and those of all lower ranks have been added; then it is decoded
// and added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/protocol/coding.hpp"
#include "engine/server/slot.hpp"

namespace legato {

class CodedSlot final : public Slot {
  public:
    // `owed` is what earlier sums of this part lost, where that is remembered.
    CodedSlot(const Origin& origin, const Coding& coding, int32_t member, const Topology& topology,
              size_t chunk_bytes, std::shared_ptr<BufferPool> pool, std::shared_ptr<std::vector<float>> owed);

    void add(int32_t worker, const std::byte* data, uint64_t num_bytes) override;
    void add_ready(int32_t worker) override;
    void add_local(int32_t worker, std::shared_ptr<Task> task) override;
    Measure measured() const override;
    bool lends_memory() const override { return false; }

  private:
    CodecContext context(uint32_t contributor) const;
    std::byte* contribution_of(int32_t worker);
    void add_whole();
    void decode_and_add(uint32_t worker, const std::byte* contribution);
    void encode_sum();

    const Coding& coding_;
    const size_t num_items_;
    const std::shared_ptr<std::vector<float>> owed_;
    std::vector<BufferPool::Buffer> contributions_;  // by worker; none for those that have nothing to add
    size_t num_added_ = 0;                           // of the lowest ranks
};

}  // namespace legato
