// The tensors of one exchange, as compiled programs reach them: by the exchange's number and their index.
#ifndef LEGATO_JAX_AVERAGES_HPP
#define LEGATO_JAX_AVERAGES_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collector_api.h"

namespace legato::jax {

// Called once, with an empty error or with what went wrong.
using Continuation = std::function<void(const std::string& error)>;

// Note: whose memory.
//
// An average may outlive the program that started it, and a program that fails gives its memory back at once.
// So the engine never sees a program's memory: `start` copies a gradient into a buffer kept here, which the
// average comes back to, and `finish` copies that into the memory of the program that takes it. Starts of a
// tensor are counted from 1, and `finish` names the one it wants, as often as it likes until the next one.
//
//             start                done
//   at rest ─────────► on its way ──────► at rest, with the average or an error
//
// A tensor is on its way at most once: the next step of a program depends on what the last one has brought.
class Averages : public std::enable_shared_from_this<Averages> {
  public:
    Averages(const LegatoCollectorApi* api, void* collector, std::vector<std::string> names);

    // The number of this start; 0 with an error.
    uint32_t start(uint32_t index, const void* source, size_t num_bytes, std::string& error);

    // Calls `done` before it returns where the average is there.
    void finish(uint32_t index, uint32_t number, void* destination, size_t num_bytes, Continuation done);

    // No tensor is started from now on; those on their way still arrive.
    void close();

    size_t num_tensors() const { return tensors_.size(); }

  private:
    struct Tensor {
        std::string name;
        bool on_its_way = false;
        std::vector<std::byte> kept;
        uint32_t number = 0;
        std::string error;
        Continuation waiting;
        void* destination = nullptr;
    };
    struct Call;

    std::string take(uint32_t index);
    void arrived(uint32_t index, const std::string& error);

    const LegatoCollectorApi* const api_;
    void* const collector_;
    std::mutex mutex_;
    bool closed_ = false;
    std::vector<Tensor> tensors_;
};

// Compiled programs outlive jobs, so they name an exchange by a number that is never given twice.
int64_t enroll(std::shared_ptr<Averages> averages);
void dismiss(int64_t number);
std::shared_ptr<Averages> find(int64_t number);

}  // namespace legato::jax

#endif
