#include "engine/net/records.hpp"

#include <cstring>
#include <new>
#include <stdexcept>

#include "engine/protocol/failure.hpp"

namespace legato {

namespace {

constexpr size_t kNonceBytes = 12;
// EVP_CTRL_AEAD_GET_TAG and EVP_CTRL_AEAD_SET_TAG.
constexpr int kGetTag = 0x10;
constexpr int kSetTag = 0x11;

void check(int result) {
    if (result != 1) throw ConnectionEnded("libcrypto failed");
}

unsigned char* plain(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* plain(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

Records::Records(Direction direction, Wire wire, const std::string& key)
    : library_(&Libcrypto::get()), context_(library_->new_context()), is_encrypted_(wire == Wire::encrypted) {
    if (key.size() != kKeyBytes)
        throw std::invalid_argument("a key of " + std::to_string(key.size()) + " bytes; accepted are " +
                                    std::to_string(kKeyBytes));
    if (!context_) throw std::bad_alloc();
    const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
    if (library_->init(context_.get(), library_->aes_256_gcm(), nullptr, bytes, nullptr,
                       direction == Direction::sending) != 1)
        throw std::runtime_error("this libcrypto has no AES-256-GCM");
}

void Records::begin() {
    std::array<unsigned char, kNonceBytes> nonce{};
    std::memcpy(nonce.data(), &num_records_, sizeof num_records_);
    ++num_records_;
    constexpr int kAsBefore = -1;
    check(library_->init(context_.get(), nullptr, nullptr, nullptr, nonce.data(), kAsBefore));
}

void Records::add(std::byte* output, const std::byte* input, size_t num_bytes) {
    int num_done = 0;
    check(library_->update(context_.get(), is_encrypted_ ? plain(output) : nullptr, &num_done, plain(input),
                           static_cast<int>(num_bytes)));
}

Tag Records::tag() {
    Tag tag;
    int num_done = 0;
    check(library_->finish(context_.get(), plain(tag.data()), &num_done));  // it has no bytes left to write
    check(library_->control(context_.get(), kGetTag, kTagBytes, tag.data()));
    return tag;
}

bool Records::is_tag(const std::byte* tag) {
    Tag expected;
    std::memcpy(expected.data(), tag, kTagBytes);
    check(library_->control(context_.get(), kSetTag, kTagBytes, expected.data()));
    int num_done = 0;
    return library_->finish(context_.get(), plain(expected.data()), &num_done) == 1;
}

Tag Sealer::seal(std::byte* output, const std::byte* data, size_t num_bytes) {
    begin();
    add(output, data, num_bytes);
    return tag();
}

Seals make_seals(Wire wire, const ConnectionKeys& keys) {
    return {Sealer(wire, keys.sending), Opener(wire, keys.receiving)};
}

}  // namespace legato
