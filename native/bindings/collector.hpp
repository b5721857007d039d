// The collector as Python has it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/collector.hpp"

namespace legato {

// What a framework tells native code of its tensors (`__dlpack_c_exchange_api__` of their class): one call
// for dtype, shape, strides, device and address, each of which costs a call of its own in Python.
struct TensorApi {
    uint32_t major_version, minor_version;
    void *older, *allocate, *share, *unshare;
    int (*describe)(void* object, nanobind::dlpack::dltensor* tensor);  // 0, or -1 and a Python error
};

// The tensors that a member takes as they are: of the class, dtype, shape and order of this one, on the host.
class Likeness {
  public:
    explicit Likeness(nanobind::handle example) : type_(nanobind::borrow(example.type())) {
        constexpr const char* kName = "dlpack_exchange_api";
        const nanobind::object capsule =
            nanobind::getattr(type_, "__dlpack_c_exchange_api__", nanobind::none());
        if (!PyCapsule_IsValid(capsule.ptr(), kName)) return;
        const auto* api = static_cast<const TensorApi*>(PyCapsule_GetPointer(capsule.ptr(), kName));
        nanobind::dlpack::dltensor tensor;
        if (api->major_version != 1 || api->describe == nullptr || !fill(api->describe, example, tensor))
            return;
        dtype_ = tensor.dtype;
        shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
        strides_.assign(tensor.strides, tensor.strides + tensor.ndim);
        num_bytes_ = dtype_.bits / 8;
        for (const int64_t size : shape_) num_bytes_ *= static_cast<uint64_t>(size);
        describe_ = api->describe;
    }

    uint64_t num_bytes() const { return num_bytes_; }
    // Its address; null of any other.
    std::byte* address_of(nanobind::handle object) const {
        nanobind::dlpack::dltensor tensor;
        if (describe_ == nullptr || !object.type().is(type_) || !fill(describe_, object, tensor))
            return nullptr;
        const bool is_like = tensor.device.device_type == nanobind::device::cpu::value &&
                             tensor.dtype == dtype_ && static_cast<size_t>(tensor.ndim) == shape_.size() &&
                             has_order(tensor);
        return is_like ? static_cast<std::byte*>(tensor.data) + tensor.byte_offset : nullptr;
    }

  private:
    using Describe = decltype(TensorApi::describe);

    static bool fill(Describe describe, nanobind::handle object, nanobind::dlpack::dltensor& tensor) {
        const bool is_told = describe(object.ptr(), &tensor) == 0;
        if (!is_told) PyErr_Clear();
        return is_told;
    }
    bool has_order(const nanobind::dlpack::dltensor& tensor) const {
        for (size_t i = 0; i < shape_.size(); ++i) {
            if (tensor.shape[i] != shape_[i]) return false;
            if (shape_[i] != 1 && tensor.strides[i] != strides_[i]) return false;
        }
        return true;
    }

    nanobind::object type_;
    Describe describe_ = nullptr;
    nanobind::dlpack::dtype dtype_;
    std::vector<int64_t> shape_, strides_;
    uint64_t num_bytes_ = 0;
};

// What Python keeps alive for each member: the engine has addresses only, and whoever added a tensor may be
// gone before its average is back.
struct PyCollector {
    std::shared_ptr<Collector> collector;
    std::vector<nanobind::object> memory;
    std::vector<std::optional<Likeness>> like;

    // Of a tensor that `add_at` takes for a member; null of any other.
    std::byte* address_of(uint32_t index, nanobind::handle tensor) const {
        const auto& example = like.at(index);
        return example ? example->address_of(tensor) : nullptr;
    }
    void add_at(uint32_t index, std::byte* address, nanobind::object tensor) {
        collector->add(index, address, address, like[index]->num_bytes(), false);
        memory[index] = std::move(tensor);
    }
};

}  // namespace legato
