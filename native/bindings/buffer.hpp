// The memory of Python objects, as kernels take it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace legato {

enum class Access { read, write };

// The memory of a Python object, which cannot be resized or freed while this lives.
class Buffer {
  public:
    Buffer(std::string name, nanobind::handle object, Access access) : name_(std::move(name)) {
        const int flags = access == Access::write ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return;
        PyErr_Clear();
        throw std::invalid_argument(name_ + " must be a contiguous" +
                                    (access == Access::write ? ", writable" : "") + " buffer");
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void* data() const { return view_.buf; }
    size_t num_bytes() const { return static_cast<size_t>(view_.len); }

    size_t num_items(size_t item_bytes) const {
        if (num_bytes() % item_bytes)
            throw std::invalid_argument(name_ + " holds " + std::to_string(num_bytes()) +
                                        " bytes, which is no multiple of " + std::to_string(item_bytes));
        return num_bytes() / item_bytes;
    }
    void require_items(size_t num_items, size_t item_bytes) const {
        if (num_bytes() != num_items * item_bytes)
            throw std::invalid_argument(name_ + " holds " + std::to_string(num_bytes()) + " bytes where " +
                                        std::to_string(num_items) + " items need " +
                                        std::to_string(num_items * item_bytes));
    }

  private:
    std::string name_;
    Py_buffer view_{};
};

}  // namespace legato
