#include "jax/averages.hpp"

#include <cstring>
#include <unordered_map>
#include <utility>

#include "jax/hand_over.hpp"

namespace legato::jax {

// One tensor on its way. It keeps the buffers until the engine is done with them.
struct Averages::Call {
    std::shared_ptr<Averages> averages;
    uint32_t index;
};

Averages::Averages(const LegatoCollectorApi* api, void* collector, std::vector<std::string> names)
    : api_(api), collector_(collector), tensors_(names.size()) {
    for (size_t i = 0; i < names.size(); ++i) tensors_[i].name = std::move(names[i]);
}

// Marks a tensor as on its way, or says why it cannot be. Under the lock.
std::string Averages::take(uint32_t index) {
    Tensor& tensor = tensors_[index];
    if (closed_) return "legato has been shut down since this program was traced; trace it again after init";
    if (tensor.on_its_way) {
        return "tensor '" + tensor.name +
               "' is started while its last average is still on its way; give each push_pull of a program a "
               "name "
               "of its own, and call finish before start";
    }
    tensor.on_its_way = true;
    return {};
}

uint32_t Averages::start(uint32_t index, const void* source, size_t num_bytes, std::string& error) {
    Tensor& tensor = tensors_[index];
    uint32_t number = 0;
    {
        const std::lock_guard lock(mutex_);
        error = take(index);
        if (!error.empty()) return 0;
        number = ++tensor.number;
    }
    tensor.kept.resize(num_bytes);
    std::memcpy(tensor.kept.data(), source, num_bytes);
    const LegatoDone done = [](void* context, const char* error) {
        const std::unique_ptr<Call> call(static_cast<Call*>(context));
        call->averages->arrived(call->index, error == nullptr ? "" : error);
    };
    auto* call = new Call{shared_from_this(), index};
    api_->start(collector_, index, tensor.kept.data(), tensor.kept.data(), num_bytes, done, call);
    return number;
}

void Averages::finish(uint32_t index, uint32_t number, void* destination, size_t num_bytes,
                      Continuation done) {
    Tensor& tensor = tensors_[index];
    std::string error;
    bool is_on_its_way = false;
    {
        const std::lock_guard lock(mutex_);
        if (number != tensor.number) {
            error = "tensor '" + tensor.name + "': the state is of start " + std::to_string(number) +
                    ", but start " + std::to_string(tensor.number) +
                    " was the last; go on with the state that the last step returned";
        } else if (tensor.waiting) {
            error = "tensor '" + tensor.name + "' is finished twice at once; finish it once in each step";
        } else if (tensor.on_its_way) {
            tensor.waiting = std::move(done);
            tensor.destination = destination;
            is_on_its_way = true;
        } else {
            error = tensor.error;
        }
    }
    if (is_on_its_way) return api_->send(collector_, index);
    if (error.empty()) std::memcpy(destination, tensor.kept.data(), num_bytes);
    done(error);
}

void Averages::arrived(uint32_t index, const std::string& error) {
    Tensor& tensor = tensors_[index];
    Continuation done;
    {
        const std::lock_guard lock(mutex_);
        tensor.on_its_way = false;
        tensor.error = error;
        done = std::exchange(tensor.waiting, {});
    }
    if (!done) return;
    // Whoever waits for the tensor comes before its next start, so nobody writes to it meanwhile.
    HandOver::instance().post(
        [self = shared_from_this(), &tensor, destination = tensor.destination, done, error] {
            if (error.empty()) std::memcpy(destination, tensor.kept.data(), tensor.kept.size());
            done(error);
        });
}

void Averages::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
}

namespace {

struct Registry {
    std::mutex mutex;
    int64_t next = 1;
    std::unordered_map<int64_t, std::shared_ptr<Averages>> enrolled;
};

Registry& registry() {
    static Registry* const registry = new Registry;
    return *registry;
}

}  // namespace

int64_t enroll(std::shared_ptr<Averages> averages) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.enrolled.emplace(all.next, std::move(averages));
    return all.next++;
}

void dismiss(int64_t number) {
    Registry& all = registry();
    std::shared_ptr<Averages> averages;
    {
        const std::lock_guard lock(all.mutex);
        const auto found = all.enrolled.find(number);
        if (found == all.enrolled.end()) return;
        averages = std::move(found->second);
        all.enrolled.erase(found);
    }
    averages->close();
}

std::shared_ptr<Averages> find(int64_t number) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.enrolled.find(number);
    return found == all.enrolled.end() ? nullptr : found->second;
}

}  // namespace legato::jax
