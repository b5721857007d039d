#include "engine/protocol/frame.hpp"

#include <bit>
#include <cstring>
#include <string>

#include "engine/protocol/failure.hpp"
#include "kernels/crc32c.hpp"

namespace legato {

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");

namespace {

uint32_t guard_of(const EncodedHeader& encoded) {
    constexpr size_t kGuardBytes = sizeof(Header::magic);
    return crc32c(encoded.data() + kGuardBytes, kHeaderBytes - kGuardBytes, 0);
}

EncodedHeader copied(const std::byte* bytes) {
    EncodedHeader encoded;
    std::memcpy(encoded.data(), bytes, kHeaderBytes);
    return encoded;
}

void check(const Header& header) {
    if (header.version != Header::kVersion)
        throw ProtocolError("protocol version " + std::to_string(header.version) + ", expected " +
                            std::to_string(Header::kVersion));
    if (header.kind < FrameKind::push || header.kind > FrameKind::measure)
        throw ProtocolError("unknown frame kind " + std::to_string(static_cast<int>(header.kind)));
    if (header.dtype > DType::i16 || header.reduction > Reduction::product || header.codec > CodecId::int8)
        throw ProtocolError("unknown dtype, reduction or codec", header.tensor, header.step);
}

}  // namespace

EncodedHeader encode(Header header, uint32_t payload_checksum) {
    header.checksum = payload_checksum;
    header.magic = Header::kMagic ^ guard_of(std::bit_cast<EncodedHeader>(header));
    return std::bit_cast<EncodedHeader>(header);
}

Header decode(const std::byte* bytes) {
    const EncodedHeader encoded = copied(bytes);
    auto header = std::bit_cast<Header>(encoded);
    if (header.magic != (Header::kMagic ^ guard_of(encoded)))
        throw ProtocolError("a header with a wrong checksum", -1, -1, FailureKind::corrupted);
    header.magic = Header::kMagic;
    check(header);
    return header;
}

Header decode_bare(const std::byte* bytes) {
    const auto header = std::bit_cast<Header>(copied(bytes));
    if (header.magic != Header::kMagic) throw ProtocolError("not a frame: bad magic");
    check(header);
    return header;
}

void check_checksum(const Header& header, uint32_t payload_checksum) {
    if (header.checksum != payload_checksum)
        throw ProtocolError("a payload with a wrong checksum", header.tensor, header.step,
                            FailureKind::corrupted);
}

void Envelope::check(const Header& header) const {
    if (header.sender != peer)
        throw ProtocolError("a frame that says it is from member " + std::to_string(header.sender));
    if (header.epoch != epoch)
        throw ProtocolError("a frame of epoch " + std::to_string(header.epoch) + ", expected " +
                            std::to_string(epoch));
    const bool is_data = header.kind == FrameKind::push || header.kind == FrameKind::sum;
    if (header.payload_bytes > (is_data ? chunk_bytes : kMaxControlBytes))
        throw ProtocolError("an oversized frame of " + std::to_string(header.payload_bytes) + " bytes",
                            header.tensor, header.step);
}

}  // namespace legato
