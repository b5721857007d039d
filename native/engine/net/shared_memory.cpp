#include "engine/net/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace legato {

SharedMemory::SharedMemory(const Descriptor& file) {
    struct stat status{};
    if (fstat(file.get(), &status) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
    const int seals = fcntl(file.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        throw std::invalid_argument("shared memory must be a memfd that is sealed against shrinking");
    if (status.st_size < 1 || static_cast<size_t>(status.st_size) > kMaxBytes)
        throw std::invalid_argument("shared memory of " + std::to_string(status.st_size) +
                                    " bytes; accepted are up to " + std::to_string(kMaxBytes));
    num_bytes_ = static_cast<size_t>(status.st_size);
    void* data = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    madvise(data, num_bytes_, MADV_DONTFORK);  // a child has no use for it
    data_ = static_cast<std::byte*>(data);
}

SharedMemory::~SharedMemory() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(other.num_bytes_) {}

void settle_near_here(std::byte* data, size_t num_bytes) {
#ifdef MADV_POPULATE_WRITE
    madvise(data, num_bytes, MADV_POPULATE_WRITE);  // a hint: older kernels do not know it
#else
    static_cast<void>(data), static_cast<void>(num_bytes);
#endif
}

}  // namespace legato
