// Where a tensor is between a gradient and its average: one for each tensor of an exchange.
//
//          start: to the engine           the engine's thread: done           finish: handed out
//   EMPTY ─────────────────────► TRAVELS ───────────────────────► ARRIVED ───────────────────────► EMPTY
//
// A slot is a resource of TensorFlow. Automatic control dependencies keep the operations on one slot in the
// order of the program, and those on different slots independent of each other: each tensor starts when its
// gradient is there, and a finish, perhaps in the next step, holds up only what reads its own tensor. While a
// tensor travels, the slot owns its memory and no thread waits.
#ifndef LEGATO_TENSORFLOW_SLOT_HPP
#define LEGATO_TENSORFLOW_SLOT_HPP

#include <cstdint>
#include <functional>
#include <string>

#include "collector_api.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace legato {

class Slot : public tensorflow::ResourceBase {
  public:
    // Called with the average, or with what went wrong.
    using Taken = std::function<void(const absl::Status&, const tensorflow::Tensor&)>;

    Slot(const LegatoCollectorApi* api, void* collector, uint32_t index, std::string name);

    // Give `source` to the engine, which leaves the average in `destination`; they may be one.
    absl::Status start(const tensorflow::Tensor& source, const tensorflow::Tensor& destination);

    // Hand out the average, now or on the engine's thread when it has arrived.
    void finish(Taken taken);

    // Whether there is an average to finish.
    bool is_started() const;

    // The exchange ends: nothing can be started any more.
    void close();

    std::string DebugString() const override;

  private:
    enum class State { kEmpty, kTravels, kArrived };

    static void done(void* context, const char* error);
    void arrive(const char* error);

    const LegatoCollectorApi* const api_;
    const uint32_t index_;
    const std::string name_;
    mutable tensorflow::mutex mutex_;
    void* collector_ TF_GUARDED_BY(mutex_);
    State state_ TF_GUARDED_BY(mutex_) = State::kEmpty;
    absl::Status status_ TF_GUARDED_BY(mutex_);
    tensorflow::Tensor source_ TF_GUARDED_BY(mutex_);
    tensorflow::Tensor average_ TF_GUARDED_BY(mutex_);
    Taken waiting_ TF_GUARDED_BY(mutex_);
};

}  // namespace legato

#endif
