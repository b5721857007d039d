// The wire: what travels between two members is a sequence of frames, a header and its payload.
//
// Note: the frame. Everything is little-endian. One frame carries one chunk of one part, so that the sender
// can choose the most urgent part anew for each frame.
//
//   offset  bytes  field
//        0      4  magic          "LGTO" xor the CRC-32C of the 60 bytes below; bare: "LGTO"
//        4      1  version        2
//        5      1  kind           FrameKind
//        6      1  flags          abort: FailureKind; push, ready: kMeasured, kUnread; otherwise 0
//        7      1  dtype          DType
//        8      1  codec          CodecId: of the payload; 0: raw items
//        9      1  reduction      Reduction
//       10      2  sender         member
//       12      4  epoch          the membership this frame belongs to
//       16      8  step
//       24      8  part_offset    in the tensor; abort: the rank it is about, as a signed number
//       32      8  part_length
//       40      8  chunk_offset   in the part, as it is encoded
//       48      4  tensor
//       52      4  rank           of the sum: what has the smallest leaves its server first
//       56      4  payload_bytes
//       60      4  checksum       CRC-32C of the payload; bare: 0
//
// A header is bare in shared memory, and where tags take the place of checksums (records.hpp).
//
// Each has its own checksum. A header is believed only when its own is right, so that no changed bit can
// choose the memory that a payload goes to, or how much of what follows is read as one. A payload's does not
// depend on who gets it: a sum goes to many readers, and its chunks are then checked once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/codec.hpp"
#include "kernels/dtype.hpp"

namespace legato {

enum class FrameKind : uint8_t {
    push = 1,     // worker to server: a chunk of its contribution
    ready,        // worker to server: nothing to add, its destination is ready
    sum,          // server to reader: a chunk of the sum
    acknowledge,  // server to a contributor that does not read, or not this time: the sum is complete
    heartbeat,    // I live
    late,         // server to contributor: the workers in the payload (4 bytes each) are still missing
    abort,        // the job is over; the payload says why
    goodbye,      // nothing follows, and that is well
    nothing,      // server to contributor: nobody had anything to add, there is no sum
    without,      // server to contributor: the answer that follows is without the workers in the payload
    measure,      // server to contributor: the measure of a complete sum, in the payload (two f64)
};

// Flags of contributions.
inline constexpr uint8_t kMeasured = 1;  // their worker wants the sum measured
inline constexpr uint8_t kUnread = 2;    // it is a reader, and does without the sum this time

struct Header {
    uint32_t magic = kMagic;
    uint8_t version = kVersion;
    FrameKind kind = FrameKind::heartbeat;
    uint8_t flags = 0;
    DType dtype = DType::f32;
    CodecId codec = CodecId::raw;
    Reduction reduction = Reduction::sum;
    uint16_t sender = 0;
    uint32_t epoch = 0;
    int64_t step = 0;
    uint64_t part_offset = 0;
    uint64_t part_length = 0;
    uint64_t chunk_offset = 0;
    uint32_t tensor = 0;
    int32_t rank = 0;
    uint32_t payload_bytes = 0;
    uint32_t checksum = 0;

    static constexpr uint32_t kMagic = 0x4f54474c;
    static constexpr uint8_t kVersion = 2;
};

inline constexpr size_t kHeaderBytes = 64;
static_assert(sizeof(Header) == kHeaderBytes);

// Small payloads (late, abort, without) are held to this.
inline constexpr uint32_t kMaxControlBytes = 4096;

using EncodedHeader = std::array<std::byte, kHeaderBytes>;

EncodedHeader encode(Header header, uint32_t payload_checksum);

// A header from a wire. Throws ProtocolError when it has changed on its way, or names something that does not
// exist.
Header decode(const std::byte* bytes);

// The same of a bare header.
Header decode_bare(const std::byte* bytes);

// Throws ProtocolError when the payload has changed on its way.
void check_checksum(const Header& header, uint32_t payload_checksum);

// What every frame of one link must say of itself, whatever it carries.
struct Envelope {
    int32_t peer;  // who is at the other end
    uint32_t epoch;
    size_t chunk_bytes;

    // Throws ProtocolError for a frame of somebody else, of another epoch, or longer than agreed.
    void check(const Header& header) const;
};

}  // namespace legato
