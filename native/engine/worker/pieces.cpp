#include "engine/worker/pieces.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace legato {

Pieces::Pieces(uint64_t piece_bytes, uint32_t* words) : piece_bytes_(piece_bytes), words_(words) {
    if (piece_bytes == 0) throw std::invalid_argument("a piece has no bytes; one or more are accepted");
    if (words == nullptr) throw std::invalid_argument("the words of pieces are at address 0");
}

void Pieces::begin(uint32_t mark, std::byte* memory, uint64_t num_bytes) {
    const std::lock_guard lock(mutex_);
    mark_ = mark;
    memory_ = memory;
    num_bytes_ = num_bytes;
    missing_.resize((num_bytes + piece_bytes_ - 1) / piece_bytes_);
    is_given_up_ = false;
    ready_bytes_ = 0;
    for (size_t piece = 0; piece < missing_.size(); ++piece)
        missing_[piece] = end_of(piece) - piece * piece_bytes_;
}

void Pieces::raise(uint64_t ready_bytes) {
    const std::lock_guard lock(mutex_);
    ready_bytes_ = std::max<uint64_t>(ready_bytes_, std::min<uint64_t>(ready_bytes, num_bytes_));
    if (is_given_up_) spoil();
}

void Pieces::arrive(uint64_t offset, uint64_t length) {
    const std::lock_guard lock(mutex_);
    const uint64_t end = offset + length;
    for (size_t piece = offset / piece_bytes_; offset < end; ++piece) {
        const uint64_t until = std::min(end, end_of(piece));
        missing_[piece] -= until - offset;
        if (missing_[piece] == 0) set(piece);
        offset = until;
    }
}

void Pieces::complete() {
    const std::lock_guard lock(mutex_);
    // Also those of whose parts this worker has no share.
    for (size_t piece = 0; piece < missing_.size(); ++piece)
        if (missing_[piece] > 0) set(piece);
}

void Pieces::give_up() {
    const std::lock_guard lock(mutex_);
    is_given_up_ = true;
    spoil();
}

uint64_t Pieces::end_of(size_t piece) const {
    return std::min<uint64_t>(num_bytes_, (piece + 1) * piece_bytes_);
}

void Pieces::set(size_t piece) {
    missing_[piece] = 0;
    // After the piece's bytes, also for a device that reads both.
    std::atomic_ref(words_[piece]).store(mark_, std::memory_order_release);
}

void Pieces::spoil() {
    for (size_t piece = 0; piece < missing_.size() && end_of(piece) <= ready_bytes_; ++piece) {
        if (missing_[piece] == 0) continue;
        std::memset(memory_ + piece * piece_bytes_, 0xFF, end_of(piece) - piece * piece_bytes_);
        set(piece);
    }
}

}  // namespace legato
