// Memory for sums, used again and again: fresh pages cost more than the sum itself.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace legato {

// All together, used and free, it never holds more than has once been in use at the same time.
class BufferPool {
  public:
    // Goes back to the pool at its end, which it keeps alive.
    class Buffer {
      public:
        Buffer() = default;
        Buffer(std::shared_ptr<BufferPool> pool, std::byte* data, size_t num_bytes)
            : pool_(std::move(pool)), data_(data), num_bytes_(num_bytes) {}
        ~Buffer();
        Buffer(Buffer&& other) noexcept;
        Buffer& operator=(Buffer&& other) noexcept;

        std::byte* data() const { return data_; }
        explicit operator bool() const { return data_ != nullptr; }

      private:
        std::shared_ptr<BufferPool> pool_;
        std::byte* data_ = nullptr;
        size_t num_bytes_ = 0;
    };

    ~BufferPool();

    // Not zeroed.
    static Buffer get(const std::shared_ptr<BufferPool>& pool, size_t num_bytes);
    size_t num_bytes() const;

  private:
    std::byte* allocate(size_t num_bytes);
    void give_back(std::byte* data, size_t num_bytes) noexcept;
    void free_until_below(size_t limit_bytes);

    mutable std::mutex mutex_;
    std::unordered_map<size_t, std::vector<std::byte*>> free_;  // by size
    size_t used_bytes_ = 0;
    size_t free_bytes_ = 0;
    size_t peak_bytes_ = 0;
    size_t grown_bytes_ = 0;  // since somebody last looked what the machine has left
};

}  // namespace legato
