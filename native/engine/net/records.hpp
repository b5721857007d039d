// What protects a connection from whoever sits between its two ends.
//
// Note: records. Where the wire is not plain, a frame travels as one record or as two, the header and the
// payload if there is any, each with a tag behind it:
//
//   header (64 bytes) | tag (16) | payload | tag (16)
//
// Records are AES-256-GCM's: `authenticated` leaves their bytes as they are (GMAC), `encrypted` does not.
// Each direction of a connection has a key of its own, made when it was joined (join.py). The nonce is the
// number of the record in its direction, and does not travel: a record that was changed, repeated, left out
// or moved is not the one that its receiver counts, and its tag is wrong. Neither end reads on after that, so
// an attacker has one attempt. The end of the stream is a frame as well (`goodbye`), so cutting it short is
// noticed too.
//
// Tags take the place of checksums: headers have the magic of shared memory, and `checksum` is 0. As with
// these, a header is believed only when its own tag is right, and a payload counts as arrived only when its
// own is. A sum's bytes are written, and decrypted, where the task wants them while its tag is still to come.
// Nobody looks there before the task is done; if the tag is wrong it never is, for the job ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/net/libcrypto.hpp"

namespace legato {

enum class Wire : uint8_t { plain, authenticated, encrypted };

inline constexpr size_t kKeyBytes = 32;
inline constexpr size_t kTagBytes = 16;

using Tag = std::array<std::byte, kTagBytes>;

// The records of one direction, one after another.
class Records {
  public:
    bool are_encrypted() const { return is_encrypted_; }

  protected:
    enum class Direction { receiving, sending };
    // Throws std::runtime_error without libcrypto, and std::invalid_argument for a key of another length.
    Records(Direction direction, Wire wire, const std::string& key);

    // These throw ConnectionEnded when libcrypto fails, as without memory.
    void begin();
    // The record's next bytes. They go to `output`, which may be where they are, unless only their tag is
    // wanted.
    void add(std::byte* output, const std::byte* input, size_t num_bytes);
    Tag tag();
    bool is_tag(const std::byte* tag);

    uint64_t num_records_ = 0;

  private:
    struct Free {
        void operator()(Libcrypto::Context* context) const { Libcrypto::get().free_context(context); }
    };

    const Libcrypto* library_;
    std::unique_ptr<Libcrypto::Context, Free> context_;
    bool is_encrypted_;
};

class Sealer : public Records {
  public:
    Sealer(Wire wire, const std::string& key) : Records(Direction::sending, wire, key) {}

    // A record; `output` is for its bytes if they are encrypted.
    Tag seal(std::byte* output, const std::byte* data, size_t num_bytes);
    // The last `num_records` are dropped. Others get their numbers, so no byte of them may have left.
    void take_back(uint64_t num_records) { num_records_ -= num_records; }
};

class Opener : public Records {
  public:
    Opener(Wire wire, const std::string& key) : Records(Direction::receiving, wire, key) {}

    void begin() { Records::begin(); }
    // As they come, where they lie.
    void open(std::byte* data, size_t num_bytes) { add(data, data, num_bytes); }
    // Whether what has been opened since `begin` is what was sealed.
    bool is_genuine(const std::byte* tag) { return is_tag(tag); }
};

// Of both directions of one connection; empty where the wire is plain.
struct Seals {
    std::optional<Sealer> sealer;
    std::optional<Opener> opener;
};

struct ConnectionKeys {
    std::string sending;
    std::string receiving;
};

Seals make_seals(Wire wire, const ConnectionKeys& keys);

}  // namespace legato
