#include "jax/handlers.hpp"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "jax/averages.hpp"
#include "xla/ffi/api/ffi.h"

namespace legato::jax {

namespace {

namespace ffi = xla::ffi;

// What the attributes of a call name; null, with the reason, where that is no longer there.
std::shared_ptr<Averages> find(int64_t exchange, int64_t index, std::string& error) {
    std::shared_ptr<Averages> averages = jax::find(exchange);
    if (averages == nullptr) {
        error = "legato has been shut down since this program was traced; trace it again after init";
    } else if (index < 0 || static_cast<size_t>(index) >= averages->num_tensors()) {
        error = "an exchange of " + std::to_string(averages->num_tensors()) + " tensors has no tensor " +
                std::to_string(index);
        averages = nullptr;
    }
    return averages;
}

Continuation keep(ffi::Promise promise) {
    return [promise = std::move(promise)](const std::string& error) mutable {
        if (error.empty()) {
            promise.SetAvailable();
        } else {
            promise.SetError(ffi::Error::Internal(error));
        }
    };
}

// In place: every output is one of the inputs.
ffi::Error join(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

ffi::Error start(ffi::AnyBuffer gradient, ffi::BufferR0<ffi::U32> finished, ffi::RemainingArgs,
                 ffi::ResultBufferR0<ffi::U32> started, int64_t exchange, int64_t index) {
    std::string error;
    if (*finished.typed_data() != 0) {
        error = "start was called again before finish; a step calls finish first, then start";
    } else if (const auto averages = find(exchange, index, error)) {
        *started->typed_data() = averages->start(static_cast<uint32_t>(index), gradient.untyped_data(),
                                                 gradient.size_bytes(), error);
    }
    return error.empty() ? ffi::Error::Success() : ffi::Error::Internal(error);
}

ffi::Future finish(ffi::BufferR0<ffi::U32> started, ffi::Result<ffi::AnyBuffer> output, int64_t exchange,
                   int64_t index) {
    ffi::Promise promise;
    ffi::Future future(promise);
    Continuation done = keep(std::move(promise));
    const uint32_t number = *started.typed_data();
    std::string error;
    if (number == 0) {
        std::memset(output->untyped_data(), 0, output->size_bytes());
        done(error);
    } else if (const auto averages = find(exchange, index, error)) {
        averages->finish(static_cast<uint32_t>(index), number, output->untyped_data(), output->size_bytes(),
                         std::move(done));
    } else {
        done(error);
    }
    return future;
}

XLA_FFI_DEFINE_HANDLER(kJoin, join, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kStart, start,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR0<ffi::U32>>()
                           .RemainingArgs()
                           .Ret<ffi::BufferR0<ffi::U32>>()
                           .Attr<int64_t>("exchange")
                           .Attr<int64_t>("index"));
XLA_FFI_DEFINE_HANDLER(kFinish, finish,
                       ffi::Ffi::Bind()
                           .Arg<ffi::BufferR0<ffi::U32>>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("exchange")
                           .Attr<int64_t>("index"));

}  // namespace

std::map<std::string, void*> handlers() {
    return {
        {"legato_join", reinterpret_cast<void*>(kJoin)},
        {"legato_start", reinterpret_cast<void*>(kStart)},
        {"legato_finish", reinterpret_cast<void*>(kFinish)},
    };
}

}  // namespace legato::jax
