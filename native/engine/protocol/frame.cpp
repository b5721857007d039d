#include "engine/protocol/frame.hpp"

#include <bit>
#include <cstring>
#include <string>

#include "engine/protocol/failure.hpp"
#include "kernels/crc32c.hpp"

namespace legato {

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");

namespace {

constexpr size_t kCheckedBytes = kHeaderBytes - sizeof(uint32_t);

uint32_t checksum_of(const Header& header, uint32_t payload_checksum) {
    return crc32c(&header, kCheckedBytes, payload_checksum);
}

}  // namespace

EncodedHeader encode(Header header, uint32_t payload_checksum) {
    header.checksum = checksum_of(header, payload_checksum);
    return std::bit_cast<EncodedHeader>(header);
}

Header decode(const std::byte* bytes) {
    EncodedHeader encoded;
    std::memcpy(encoded.data(), bytes, kHeaderBytes);
    const auto header = std::bit_cast<Header>(encoded);
    if (header.magic != Header::kMagic) throw ProtocolError("not a frame: bad magic");
    if (header.version != Header::kVersion)
        throw ProtocolError("protocol version " + std::to_string(header.version) + ", expected " +
                            std::to_string(Header::kVersion));
    if (header.kind < FrameKind::push || header.kind > FrameKind::measure)
        throw ProtocolError("unknown frame kind " + std::to_string(static_cast<int>(header.kind)));
    if (header.dtype > DType::i16 || header.reduction > Reduction::product || header.codec > CodecId::int8)
        throw ProtocolError("unknown dtype, reduction or codec", header.tensor, header.step);
    return header;
}

void check_checksum(const Header& header, uint32_t payload_checksum) {
    if (header.checksum != checksum_of(header, payload_checksum))
        throw ProtocolError("wrong checksum", header.tensor, header.step);
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
