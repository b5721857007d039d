#include "engine/buffer_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "engine/memory_left.hpp"

namespace legato {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = 2 * 1024 * 1024;
// So often, as memory grows, the machine is asked what it has left; and so much is left to everybody else.
constexpr size_t kLookBytes = 64 * 1024 * 1024;

// What is handed out is no memory yet: the kernel gives pages when they are written to, and ends a process
// when it has none. So whoever asks hears it before.
class OutOfMemory final : public std::bad_alloc {
  public:
    const char* what() const noexcept override { return "its machine has no memory left for more sums"; }
};

std::align_val_t alignment_of(size_t num_bytes) {
    return std::align_val_t(num_bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes);
}

std::byte* new_pages(size_t num_bytes) {
    auto* data = static_cast<std::byte*>(::operator new(num_bytes, alignment_of(num_bytes)));
    if (num_bytes >= kHugePageBytes) madvise(data, num_bytes, MADV_HUGEPAGE);  // a hint: it may fail
    return data;
}

void delete_pages(std::byte* data, size_t num_bytes) { ::operator delete(data, alignment_of(num_bytes)); }

}  // namespace

BufferPool::Buffer::~Buffer() {
    if (data_ != nullptr) pool_->give_back(data_, num_bytes_);
}

BufferPool::Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
}

BufferPool::~BufferPool() { free_until_below(0); }

BufferPool::Buffer BufferPool::get(const std::shared_ptr<BufferPool>& pool, size_t num_bytes) {
    const size_t rounded = (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    return {pool, pool->allocate(rounded), rounded};
}

size_t BufferPool::num_bytes() const {
    const std::lock_guard lock(mutex_);
    return used_bytes_ + free_bytes_;
}

std::byte* BufferPool::allocate(size_t num_bytes) {
    const std::lock_guard lock(mutex_);
    const size_t used_bytes = used_bytes_ + num_bytes;
    const auto found = free_.find(num_bytes);
    std::byte* data;
    if (found != free_.end()) {
        data = found->second.back();
        found->second.pop_back();
        if (found->second.empty()) free_.erase(found);
        free_bytes_ -= num_bytes;
    } else {
        free_until_below(std::max(peak_bytes_, used_bytes) - used_bytes);
        grown_bytes_ += num_bytes;
        if (grown_bytes_ >= kLookBytes) {
            if (is_memory_short(num_bytes + kLookBytes, used_bytes)) throw OutOfMemory();
            grown_bytes_ = 0;
        }
        data = new_pages(num_bytes);  // may throw
    }
    used_bytes_ = used_bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes);
    return data;
}

void BufferPool::give_back(std::byte* data, size_t num_bytes) noexcept {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= num_bytes;
    try {
        free_[num_bytes].push_back(data);
        free_bytes_ += num_bytes;
    } catch (const std::bad_alloc&) {  // no room to note it: then it is not kept
        std::erase_if(free_, [](const auto& entry) { return entry.second.empty(); });
        delete_pages(data, num_bytes);
    }
}

void BufferPool::free_until_below(size_t limit_bytes) {
    while (free_bytes_ > limit_bytes) {
        const auto any = free_.begin();
        delete_pages(any->second.back(), any->first);
        free_bytes_ -= any->first;
        any->second.pop_back();
        if (any->second.empty()) free_.erase(any);
    }
}

}  // namespace legato
