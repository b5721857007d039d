// An emulated accelerator for compiled JAX programs, for bench/jax_worker.py, which compiles it.
//
// A layer ends after as long as it would compute, and no thread of XLA's waits for it. Its backward pass
// makes a real gradient: a number of this rank's, everywhere.
#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Clock = std::chrono::steady_clock;
using Vector = ffi::BufferR1<ffi::F32>;

// A device that waited for less than this did not wait: its host woke up late.
constexpr auto kLag = std::chrono::milliseconds(2);

std::mutex mutex;
Clock::time_point free_at;
float gradient_value = 0;

// Runs after whatever was begun before, for so long. A thread for each layer: XLA goes on with anything that
// has been waiting for the layer on the thread that announces its end, and may stay there.
ffi::Future run(double seconds, std::function<void()> make) {
    ffi::Promise promise;
    ffi::Future future(promise);
    const auto now = Clock::now();
    Clock::time_point end;
    {
        const std::lock_guard lock(mutex);
        const auto begin = now - free_at < kLag ? free_at : now;
        end = free_at =
            begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }
    std::thread([end, promise = std::move(promise), make = std::move(make)]() mutable {
        make();
        std::this_thread::sleep_until(end);
        promise.SetAvailable();
    }).detach();
    return future;
}

ffi::Future forward(Vector carried, Vector, ffi::ResultBufferR1<ffi::F32> result, double seconds) {
    return run(seconds, [from = carried.typed_data(), to = result->typed_data(),
                         size = carried.element_count()] { std::copy_n(from, size, to); });
}

ffi::Future backward(Vector carried, Vector, ffi::ResultBufferR1<ffi::F32> result,
                     ffi::ResultBufferR1<ffi::F32> gradient, double seconds) {
    return run(seconds,
               [from = carried.typed_data(), to = result->typed_data(), size = carried.element_count(),
                made = gradient->typed_data(), num_made = gradient->element_count()] {
                   std::copy_n(from, size, to);
                   std::fill_n(made, num_made, gradient_value);
               });
}

}  // namespace

extern "C" void bench_set_gradient(float value) { gradient_value = value; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    bench_forward, forward,
    ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Ret<Vector>().Attr<double>("seconds"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    bench_backward, backward,
    ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Ret<Vector>().Ret<Vector>().Attr<double>("seconds"));
