// raw, fp16 and bf16: the items themselves, or rounded to nearest even.
#include <stdexcept>

#include "kernels/codec.hpp"
#include "kernels/reduce.hpp"

namespace legato {

namespace {

class Cast final : public Codec {
  public:
    Cast(CodecId id, DType dtype) : Codec(id), dtype_(dtype) {}

    size_t encoded_bytes(size_t num_items) const override { return num_items * item_bytes(dtype_); }
    void encode(std::byte* output, const std::byte* items, size_t num_items,
                const CodecContext&) const override {
        store(dtype_, output, items, 1.0, num_items);
    }
    void decode(std::byte* items, const std::byte* input, size_t num_items,
                const CodecContext&) const override {
        load(dtype_, items, input, num_items);
    }

  private:
    const DType dtype_;
};

}  // namespace

CodecPtr raw_codec() { return std::make_shared<Cast>(CodecId::raw, DType::f32); }

CodecPtr cast_codec(DType dtype) {
    if (dtype != DType::f16 && dtype != DType::bf16)
        throw std::invalid_argument("a cast is to float16 or bfloat16");
    return std::make_shared<Cast>(dtype == DType::f16 ? CodecId::fp16 : CodecId::bf16, dtype);
}

}  // namespace legato
