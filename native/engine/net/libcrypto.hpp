// AES-256-GCM from the libcrypto of this machine, which Python has mostly loaded already. It is looked up
// when it is needed: building takes no headers of OpenSSL, and the module is linked against nothing.
#pragma once

namespace legato {

// OpenSSL's EVP functions, the same from 1.1 on.
struct Libcrypto {
    struct Context;
    struct Cipher;

    Context* (*new_context)();
    void (*free_context)(Context*);
    const Cipher* (*aes_256_gcm)();
    int (*init)(Context*, const Cipher*, void* engine, const unsigned char* key, const unsigned char* nonce,
                int is_encrypting);
    int (*update)(Context*, unsigned char* output, int* output_bytes, const unsigned char* input,
                  int input_bytes);
    int (*finish)(Context*, unsigned char* output, int* output_bytes);
    int (*control)(Context*, int what, int number, void* data);

    // Throws std::runtime_error where there is none.
    static const Libcrypto& get();
};

}  // namespace legato
