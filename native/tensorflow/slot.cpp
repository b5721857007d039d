#include "tensorflow/slot.hpp"

#include <utility>

namespace legato {

using tensorflow::mutex_lock;
using tensorflow::Tensor;

Slot::Slot(const LegatoCollectorApi* api, void* collector, uint32_t index, std::string name)
    : api_(api), index_(index), name_(std::move(name)), collector_(collector) {}

absl::Status Slot::start(const Tensor& source, const Tensor& destination) {
    void* collector = nullptr;
    {
        const mutex_lock lock(mutex_);
        if (collector_ == nullptr) {
            return absl::FailedPreconditionError(
                "tensor '" + name_ + "': the job has been closed; call init() again, and trace anew");
        }
        if (state_ != State::kEmpty) {
            return absl::FailedPreconditionError("tensor '" + name_ +
                                                 "': started twice; its last average has not been applied");
        }
        state_ = State::kTravels;
        source_ = source;
        average_ = destination;
        collector = collector_;
    }
    Ref();  // the engine's, until it calls `done`
    api_->start(collector, index_, source.data(), destination.data(), source.TotalBytes(), &Slot::done, this);
    return absl::OkStatus();
}

void Slot::finish(Taken taken) {
    absl::Status status;
    Tensor average;
    {
        const mutex_lock lock(mutex_);
        if (state_ == State::kTravels) {
            waiting_ = std::move(taken);
            return;
        }
        if (state_ == State::kEmpty) {
            status = absl::FailedPreconditionError("tensor '" + name_ + "': finished, but not started");
        } else {
            status = std::move(status_);
            average = std::move(average_);
            state_ = State::kEmpty;
        }
    }
    taken(status, average);
}

bool Slot::is_started() const {
    const mutex_lock lock(mutex_);
    return state_ != State::kEmpty;
}

void Slot::close() {
    const mutex_lock lock(mutex_);
    collector_ = nullptr;
}

std::string Slot::DebugString() const { return "legato: " + name_; }

void Slot::done(void* context, const char* error) {
    Slot* const slot = static_cast<Slot*>(context);
    slot->arrive(error);
    slot->Unref();
}

void Slot::arrive(const char* error) {
    const absl::Status status = error == nullptr ? absl::OkStatus() : absl::AbortedError(error);
    Taken waiting;
    Tensor average;
    {
        const mutex_lock lock(mutex_);
        source_ = Tensor();
        if (waiting_ == nullptr) {
            status_ = status;
            state_ = State::kArrived;
            return;
        }
        waiting = std::exchange(waiting_, nullptr);
        average = std::move(average_);
        state_ = State::kEmpty;
    }
    waiting(status, average);
}

}  // namespace legato
