// Operations on MXNet's engine: one that averages an array over all workers, and any whose body is Python's.
//
//    MXNet's thread: begin                     the engine's thread: done
//    the array is ours ─► its address ─► collector ... average in place ─► the array is MXNet's again
//
// MXNet keeps whoever reads or writes the array waiting from `begin` to `done`; no thread waits, and no
// interpreter is needed. No header of MXNet's either: what is used of libmxnet is given as addresses, and
// written down here.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "collector_api.h"

namespace {

// mxnet::Engine::CallbackOnComplete in libmxnet 1.9, with a dmlc::Error, which is a std::runtime_error.
//
// MXNet keeps the errors that ended operations in a vector without a lock
// (ThreadedEngine::AddToGlobalExceptions): operations that fail on several threads at once corrupt its heap.
// A lost peer does that, so errors go one by one. What waited for a failed operation only looks for its error
// there, and finds it.
struct OnComplete {
    void (*call)(void* engine, void* operation, const std::runtime_error* error);
    void* engine;
    void* operation;

    void operator()(const char* error) const {
        if (error == nullptr) return call(engine, operation, nullptr);
        static std::mutex one_by_one;
        const std::lock_guard lock(one_by_one);
        const std::runtime_error thrown(error);  // MXNet copies it
        call(engine, operation, &thrown);
    }
};

// Operations whose body is Python's, from push until MXNet's thread is out of the interpreter again: one that
// the interpreter ends in there, because it ends itself, never frees what it held.
class Bodies {
  public:
    void add(int number) {
        const std::lock_guard lock(mutex_);
        pending_ += number;
        if (pending_ == 0) none_pending_.notify_all();
    }

    bool wait(double timeout_s) {
        std::unique_lock lock(mutex_);
        return none_pending_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                      [this] { return pending_ == 0; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable none_pending_;
    int pending_ = 0;
};

Bodies& bodies() {
    static Bodies* const it = new Bodies;  // never destroyed: MXNet's threads outlive static objects
    return *it;
}

// The beginning of a DLManagedTensor.
struct Managed {
    void* data;
};

}  // namespace

extern "C" {

// Functions of libmxnet's C interface.
struct LegatoMxnet {
    int (*to_dlpack)(void* array, Managed** managed);
    int (*release_dlpack)(Managed* managed);
    int (*free_array)(void* array);
};

struct LegatoMxnetOperation {
    const LegatoMxnet* mxnet;
    const LegatoCollectorApi* api;
    void* collector;
    void* array;  // a handle of its own, so that the memory outlives whoever pushed the operation
    uint64_t num_bytes;
    uint32_t index;
    OnComplete on_complete;
};

__attribute__((visibility("default"))) LegatoMxnetOperation* legato_mxnet_make(const LegatoMxnet* mxnet,
                                                                               const LegatoCollectorApi* api,
                                                                               void* collector,
                                                                               uint32_t index, void* array,
                                                                               uint64_t num_bytes) {
    return new LegatoMxnetOperation{mxnet, api, collector, array, num_bytes, index, {}};
}

// Called by MXNet when the operation is over, or has been skipped because what it needs has failed.
__attribute__((visibility("default"))) void legato_mxnet_free(LegatoMxnetOperation* operation) {
    const std::unique_ptr<LegatoMxnetOperation> freed(operation);
    freed->mxnet->free_array(freed->array);
}

// An operation that calls a function of Python's with a number.
struct LegatoMxnetBody {
    void (*function)(void* run_context, const OnComplete* on_complete, uint64_t number);
    uint64_t number;
    bool called;
};

__attribute__((visibility("default"))) LegatoMxnetBody* legato_mxnet_body(
    void (*function)(void*, const OnComplete*, uint64_t), uint64_t number) {
    bodies().add(1);
    return new LegatoMxnetBody{function, number, false};
}

// Called by MXNet when the arrays are free.
__attribute__((visibility("default"))) void legato_mxnet_call(void* run_context,
                                                              const OnComplete* on_complete,
                                                              LegatoMxnetBody* body) {
    body->called = true;
    body->function(run_context, on_complete, body->number);  // may end the operation, which frees the body
    bodies().add(-1);
}

// Called by MXNet when the operation is over, or has been skipped because what it needs has failed.
__attribute__((visibility("default"))) void legato_mxnet_free_body(LegatoMxnetBody* body) {
    const std::unique_ptr<LegatoMxnetBody> freed(body);
    if (!freed->called) bodies().add(-1);
}

// Whether all of them have been called, and no thread of MXNet's is in Python any more.
__attribute__((visibility("default"))) bool legato_mxnet_wait_for_bodies(double timeout_s) {
    return bodies().wait(timeout_s);
}

// The end of any operation of ours, from any thread; without an error if that is null.
__attribute__((visibility("default"))) void legato_mxnet_end(const OnComplete* on_complete,
                                                             const char* error) {
    (*on_complete)(error);
}

static void done(void* context, const char* error) {
    const OnComplete on_complete =
        static_cast<LegatoMxnetOperation*>(context)->on_complete;  // frees the operation
    on_complete(error);
}

// Called by MXNet when the array is free to be written.
__attribute__((visibility("default"))) void legato_mxnet_begin(void* /*run_context*/,
                                                               const OnComplete* on_complete,
                                                               LegatoMxnetOperation* operation) {
    operation->on_complete = *on_complete;  // which is on the caller's stack
    // Only now: oneDNN may have moved the elements since. Unlike MXNDArrayGetData, this never waits.
    Managed* managed = nullptr;
    if (operation->mxnet->to_dlpack(operation->array, &managed) != 0)
        return done(operation, "the array is in a layout of oneDNN's; give a copy of it");
    void* const data = managed->data;
    operation->mxnet->release_dlpack(managed);
    operation->api->start(operation->collector, operation->index, data, data, operation->num_bytes, &done,
                          operation);
}

}  // extern "C"
