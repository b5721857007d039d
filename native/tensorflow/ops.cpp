// The operations of legato.tensorflow: what stands in a graph at each gradient and before each update.

#include <memory>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/slot.hpp"

namespace legato {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::HOST_MEMORY;
using tensorflow::LookupResource;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::core::RefCountPtr;
using tensorflow::shape_inference::InferenceContext;

#define LEGATO_TYPES "{float16, bfloat16, float32, float64, int8, uint8, int32, int64}"

REGISTER_OP("LegatoSlot")
    .Attr("api: int")
    .Attr("collector: int")
    .Attr("index: int")
    .Attr("label: string")
    .Output("slot: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("The slot of one tensor of an exchange; `api` and `collector` are addresses.");

REGISTER_OP("LegatoClose")
    .Input("slot: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("The exchange ends: nothing can be started in this slot any more.");

REGISTER_OP("LegatoStarted")
    .Input("slot: resource")
    .Output("started: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Whether a tensor has been started and not yet finished.");

REGISTER_OP("LegatoStart")
    .Input("slot: resource")
    .Input("tensor: T")
    .Attr("T: " LEGATO_TYPES)
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Give a tensor to the engine. Returns at once.");

REGISTER_OP("LegatoFinish")
    .Input("slot: resource")
    .Output("average: T")
    .Attr("T: " LEGATO_TYPES)
    .Attr("shape: shape")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ExplicitShape)
    .Doc("The average over all workers of the tensor that was started last, once it has arrived.");

REGISTER_OP("LegatoPushPull")
    .Input("slot: resource")
    .Input("tensor: T")
    .Output("average: T")
    .Attr("T: " LEGATO_TYPES)
    .Attr("label: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
        context->set_output(0, context->input(1));
        return absl::OkStatus();
    })
    .Doc("Start and finish in one; what gradients flow through.");

// The slot that is an operation's first input.
absl::Status find(OpKernelContext* context, RefCountPtr<Slot>* slot) {
    return LookupResource(context, tensorflow::HandleFromInput(context, 0), slot);
}

// Where the average goes: the memory of input 1 where nobody else needs it, otherwise new memory.
absl::Status destination_of(OpKernelContext* context, int output, Tensor* destination) {
    const Tensor& source = context->input(1);
    std::unique_ptr<Tensor> same =
        context->forward_input(1, output, source.dtype(), source.shape(), HOST_MEMORY, AllocatorAttributes());
    if (same != nullptr) {
        *destination = *same;
        return absl::OkStatus();
    }
    return context->allocate_temp(source.dtype(), source.shape(), destination);
}

class SlotOp : public OpKernel {
  public:
    explicit SlotOp(OpKernelConstruction* construction) : OpKernel(construction) {
        OP_REQUIRES_OK(construction, construction->GetAttr("api", &api_));
        OP_REQUIRES_OK(construction, construction->GetAttr("collector", &collector_));
        OP_REQUIRES_OK(construction, construction->GetAttr("index", &index_));
        OP_REQUIRES_OK(construction, construction->GetAttr("label", &label_));
    }

    void Compute(OpKernelContext* context) override {
        Tensor* handle = nullptr;
        OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &handle));
        const auto* const api = reinterpret_cast<const LegatoCollectorApi*>(api_);
        Slot* const slot =
            new Slot(api, reinterpret_cast<void*>(collector_), static_cast<uint32_t>(index_), label_);
        handle->scalar<ResourceHandle>()() =
            ResourceHandle::MakeRefCountingHandle(slot, context->device()->name());
    }

  private:
    int64_t api_ = 0;
    int64_t collector_ = 0;
    int64_t index_ = 0;
    std::string label_;
};

class CloseOp : public OpKernel {
  public:
    using OpKernel::OpKernel;

    void Compute(OpKernelContext* context) override {
        RefCountPtr<Slot> slot;
        OP_REQUIRES_OK(context, find(context, &slot));
        slot->close();
    }
};

class StartedOp : public OpKernel {
  public:
    using OpKernel::OpKernel;

    void Compute(OpKernelContext* context) override {
        RefCountPtr<Slot> slot;
        OP_REQUIRES_OK(context, find(context, &slot));
        Tensor* started = nullptr;
        OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &started));
        started->scalar<bool>()() = slot->is_started();
    }
};

class StartOp : public OpKernel {
  public:
    using OpKernel::OpKernel;

    void Compute(OpKernelContext* context) override {
        RefCountPtr<Slot> slot;
        OP_REQUIRES_OK(context, find(context, &slot));
        Tensor destination;
        OP_REQUIRES_OK(context,
                       destination_of(context, OpKernelContext::Params::kNoReservation, &destination));
        OP_REQUIRES_OK(context, slot->start(context->input(1), destination));
    }
};

class FinishOp : public AsyncOpKernel {
  public:
    using AsyncOpKernel::AsyncOpKernel;

    void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
        RefCountPtr<Slot> slot;
        OP_REQUIRES_OK_ASYNC(context, find(context, &slot), done);
        slot->finish([context, done = std::move(done)](const absl::Status& status, const Tensor& average) {
            OP_REQUIRES_OK_ASYNC(context, status, done);
            context->set_output(0, average);
            done();
        });
    }
};

class PushPullOp : public AsyncOpKernel {
  public:
    using AsyncOpKernel::AsyncOpKernel;

    void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
        RefCountPtr<Slot> slot;
        OP_REQUIRES_OK_ASYNC(context, find(context, &slot), done);
        Tensor destination;
        OP_REQUIRES_OK_ASYNC(context, destination_of(context, 0, &destination), done);
        OP_REQUIRES_OK_ASYNC(context, slot->start(context->input(1), destination), done);
        slot->finish([context, done = std::move(done)](const absl::Status& status, const Tensor& average) {
            OP_REQUIRES_OK_ASYNC(context, status, done);
            context->set_output(0, average);
            done();
        });
    }
};

#define LEGATO_KERNEL(name, kernel) REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), kernel)

LEGATO_KERNEL("LegatoSlot", SlotOp);
LEGATO_KERNEL("LegatoClose", CloseOp);
LEGATO_KERNEL("LegatoStarted", StartedOp);
LEGATO_KERNEL("LegatoStart", StartOp);
LEGATO_KERNEL("LegatoFinish", FinishOp);
LEGATO_KERNEL("LegatoPushPull", PushPullOp);

}  // namespace
}  // namespace legato
