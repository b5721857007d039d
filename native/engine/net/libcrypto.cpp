#include "engine/net/libcrypto.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace legato {

namespace {

constexpr const char* kNames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

// Rather the one that is loaded than a second one beside it. It is never closed.
void* open_library() {
    for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW})
        for (const char* name : kNames)
            if (void* library = dlopen(name, flags | RTLD_LOCAL)) return library;
    throw std::runtime_error("there is no libcrypto.so.3 or libcrypto.so.1.1 (OpenSSL)");
}

template <typename Function>
void find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error("libcrypto has no " + std::string(name));
}

Libcrypto load() {
    void* library = open_library();
    Libcrypto found{};
    find(library, "EVP_CIPHER_CTX_new", found.new_context);
    find(library, "EVP_CIPHER_CTX_free", found.free_context);
    find(library, "EVP_aes_256_gcm", found.aes_256_gcm);
    find(library, "EVP_CipherInit_ex", found.init);
    find(library, "EVP_CipherUpdate", found.update);
    find(library, "EVP_CipherFinal_ex", found.finish);
    find(library, "EVP_CIPHER_CTX_ctrl", found.control);
    return found;
}

}  // namespace

const Libcrypto& Libcrypto::get() {
    static const Libcrypto library = load();
    return library;
}

}  // namespace legato
