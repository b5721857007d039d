// An operation on MXNet's engine that averages one array over all workers.
//
//    MXNet's thread: begin                     the engine's thread: done
//    the array is ours ─► its address ─► collector ... average in place ─► the array is MXNet's again
//
// MXNet keeps whoever reads or writes the array waiting from `begin` to `done`; no thread waits, and no
// interpreter is needed. No header of MXNet's either: what is used of libmxnet is given as addresses, and
// written down here.

#include <cstdint>
#include <memory>
#include <stdexcept>

#include "collector_api.h"

namespace {

// mxnet::Engine::CallbackOnComplete in libmxnet 1.9, with a dmlc::Error, which is a std::runtime_error.
struct OnComplete {
    void (*call)(void* engine, void* operation, const std::runtime_error* error);
    void* engine;
    void* operation;

    void operator()(const char* error) const {
        if (error == nullptr) return call(engine, operation, nullptr);
        const std::runtime_error thrown(error);  // MXNet copies it
        call(engine, operation, &thrown);
    }
};

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
