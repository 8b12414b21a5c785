// Copies within the device, between devices, and to and from the host.
#include <ATen/ops/clone.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <mutex>

#include "glue.h"

namespace accel_streams::fake {
namespace {

std::function<void()> copying(at::Tensor to, at::Tensor from) {
  return [to = std::move(to), from = std::move(from)] {
    const PlainCpuScope plain;
    to.copy_(from);
  };
}

// A host tensor that queued work refers to. A queued closure is destroyed under the runtime's lock; to destroy
// a host tensor there could need the interpreter's lock, whose holder may be waiting for the runtime's.
class HostTensor {
 public:
  explicit HostTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  ~HostTensor() {
    const std::lock_guard<std::mutex> guard(mutex());
    finished().push_back(std::move(tensor_));
  }
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;
  const at::Tensor& get() const { return tensor_; }

  // Called where no lock is held.
  static void release_finished() {
    std::vector<at::Tensor> released;
    {
      const std::lock_guard<std::mutex> guard(mutex());
      released.swap(finished());
    }
  }

 private:
  static std::mutex& mutex() {
    static auto* const instance = new std::mutex();
    return *instance;
  }
  static std::vector<at::Tensor>& finished() {
    static auto* const instance = new std::vector<at::Tensor>();
    return *instance;
  }
  at::Tensor tensor_;
};

void copy_within(const at::Tensor& from, const at::Tensor& to) {
  std::vector<Access> accesses;
  add_access(accesses, from, Mode::Read);
  add_access(accesses, to, Mode::Write);
  enqueue(from.device().index(), "aten::copy_", std::move(accesses), copying(alias_on_cpu(to), alias_on_cpu(from)));
}

// As CUDA does it: the copy runs on the source's stream, after the destination's, and the destination's stream
// goes on after the copy.
void copy_between(const at::Tensor& from, const at::Tensor& to) {
  Runtime& runtime = Runtime::instance();
  const StreamKey source = current_stream(from.device().index());
  const StreamKey destination = current_stream(to.device().index());
  const SourceId place = capture_source();
  runtime.wait(source, runtime.record(destination, true, place), place);
  copy_within(from, to);
  runtime.wait(destination, runtime.record(source, true, place), place);
}

void copy_from_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  std::vector<Access> accesses;
  add_access(accesses, to, Mode::Write);
  at::Tensor source = from;
  const bool reads_when_it_runs = non_blocking && is_pinned(from.const_data_ptr());
  {
    const PlainCpuScope plain;
    // Pageable memory is staged at the call: the host may change it afterwards.
    source = reads_when_it_runs ? from.alias() : from.clone();
  }
  enqueue(to.device().index(), "aten::copy_ (host to device)", std::move(accesses),
          [target = alias_on_cpu(to), host = std::make_shared<HostTensor>(std::move(source))] {
            const PlainCpuScope scope;
            target.copy_(host->get());
          });
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  std::vector<Access> accesses;
  add_access(accesses, from, Mode::Read);
  const int device = from.device().index();
  const PlainCpuScope plain;
  auto run = [host = std::make_shared<HostTensor>(to.alias()), source = alias_on_cpu(from)] {
    const PlainCpuScope scope;
    host->get().copy_(source);
  };
  if (non_blocking && is_pinned(to.const_data_ptr())) {
    enqueue(device, "aten::copy_ (device to host)", std::move(accesses), std::move(run));
  } else {
    enqueue_and_wait(device, "aten::copy_ (device to host)", std::move(accesses), std::move(run));
  }
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  HostTensor::release_finished();
  if (dst.numel() == 0) return dst;
  const bool from_device = self.device().type() == kFake;
  const bool to_device = dst.device().type() == kFake;
  TORCH_CHECK((from_device || self.device().is_cpu()) && (to_device || dst.device().is_cpu()),
              "the fake device copies to and from the CPU only, asked for ", self.device(), " to ", dst.device());
  const c10::DeviceGuard guard(to_device ? dst.device() : self.device());
  if (!from_device) {
    copy_from_host(self, dst, non_blocking);
  } else if (!to_device) {
    copy_to_host(self, dst, non_blocking);
  } else if (self.device() == dst.device()) {
    copy_within(self, dst);
  } else {
    copy_between(self, dst);
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  auto result = std::make_shared<at::Scalar>();
  std::vector<Access> accesses;
  add_access(accesses, self, Mode::Read);
  enqueue_and_wait(self.device().index(), "aten::_local_scalar_dense", std::move(accesses),
                   [alias = alias_on_cpu(self), result] {
                     const PlainCpuScope plain;
                     *result = alias.item();
                   });
  return *result;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

// The CPU's copy_ resolves conjugate and negative views itself. torch's fallback for them would copy, which is
// this operator again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace accel_streams::fake
