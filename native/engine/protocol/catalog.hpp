// What has been declared: every tensor, and the layouts in which it travels.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/protocol/coding.hpp"
#include "engine/protocol/layout.hpp"
#include "kernels/dtype.hpp"

namespace legato {

struct Tensor {
    uint32_t id;
    std::string name;
    uint64_t num_bytes;
    DType dtype;
    Coding coding = {};
    std::optional<int64_t> staleness = {};  // given: a running total (running_total.hpp)
    int32_t backups = 0;                    // workers that a step need not wait for (quorum.hpp)

    // Not all of one step, but as in gathering.hpp.
    bool gathers_otherwise() const { return staleness || backups > 0; }
};

class Catalog {
  public:
    Catalog(int32_t num_workers, int32_t num_members)
        : num_workers_(num_workers), num_members_(num_members) {}

    // Both throw std::invalid_argument for what cannot be.
    void declare(Tensor tensor);
    void lay_out(uint32_t tensor, int64_t from_step, std::vector<Part> parts);

    struct Entry {
        const Tensor* tensor = nullptr;        // null: not declared; it lives as long as the catalog
        std::shared_ptr<const Layout> layout;  // null: not laid out for this step
    };
    Entry find(uint32_t tensor, int64_t step) const;
    // The tensor has come as far as `step`: older layouts can be dropped, and none begins before it. Never by
    // the word of one peer, who could shut out every layout to come: only by a task of this member's own, or
    // a sum to which all have contributed.
    void reach(uint32_t tensor, int64_t step);

  private:
    struct Record {
        Tensor tensor;
        int64_t latest_step = -1;
        std::vector<std::shared_ptr<const Layout>> layouts;  // by from_step
    };

    void check(const Tensor& tensor, const std::vector<Part>& parts) const;
    static size_t index_for(const Record& record, int64_t step);
    static void drop_outdated(Record& record);

    const int32_t num_workers_;
    const int32_t num_members_;
    mutable std::mutex mutex_;
    std::unordered_map<uint32_t, Record> records_;
};

}  // namespace legato
