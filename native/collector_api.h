// What native code of a framework calls to have tensors averaged: from any thread, without the interpreter.
//
// `legato._native.collector_api()` is the address of a LegatoCollectorApi, and a Collector's `address` is what its
// functions take first. Plain C, so that a module built with another compiler, or other headers, can use it.
#ifndef LEGATO_COLLECTOR_API_H
#define LEGATO_COLLECTOR_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LEGATO_COLLECTOR_API_VERSION 1

// Called once for each tensor that was started: when its average is in `destination` (`error` is null), or when the
// job has failed (`error` says why, and is valid during the call). On a thread of the engine, or on the caller's own
// before `start` returns: it must not wait for anything.
typedef void (*LegatoDone)(void* context, const char* error);

typedef struct LegatoCollectorApi {
    uint32_t version;

    // Average the tensor at place `index` over all workers, from `source` into `destination`, which may be the same.
    // Returns at once; both belong to the engine until `done` is called. Each call for an index is its next step. A
    // null `source` adds nothing to the average.
    void (*start)(void* collector, uint32_t index, const void* source, void* destination, uint64_t num_bytes,
                  LegatoDone done, void* context);

    // Somebody waits for what was started at place `index`: it goes now, without the rest of its bucket.
    void (*send)(void* collector, uint32_t index);
} LegatoCollectorApi;

#ifdef __cplusplus
}
#endif

#endif
