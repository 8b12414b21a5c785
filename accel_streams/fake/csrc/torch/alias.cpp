#include <ATen/EmptyTensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "glue.h"

namespace accel_streams::fake {
namespace {

void release_slab(void* context) {
  const std::unique_ptr<std::shared_ptr<Slab>> owned(static_cast<std::shared_ptr<Slab>*>(context));
}

// One CPU storage for each allocation, so that aliases of one tensor alias each other for torch's own checks.
const c10::Storage& cpu_storage(Block& block) {
  if (block.attachment == nullptr) {
    auto owned = std::make_unique<std::shared_ptr<Slab>>(block.slab);
    void* const data = block.slab->data();
    c10::DataPtr pointer(data, owned.release(), &release_slab, c10::Device(c10::DeviceType::CPU));
    block.attachment = std::make_shared<c10::Storage>(c10::Storage::use_byte_size_t(), block.bytes, std::move(pointer));
  }
  return *static_cast<c10::Storage*>(block.attachment.get());
}

c10::DispatchKeySet excluded_keys() {
  using c10::DispatchKey;
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet({DispatchKey::ADInplaceOrView, DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                              DispatchKey::Functionalize, DispatchKey::FuncTorchDynamicLayerFrontMode,
                              DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::PreDispatch,
                              DispatchKey::PythonDispatcher});
}

}  // namespace

// BackendSelect chooses the kernel of operators that are told a device and have no tensors.
PlainCpuScope::PlainCpuScope() : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), excluded_keys()) {}

at::Tensor alias_on_cpu(const at::Tensor& tensor) {
  const std::shared_ptr<Block> block = block_of(tensor.storage());
  c10::Storage storage;
  if (block == nullptr) {
    storage = c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
  } else {
    const auto guard = Runtime::instance().lock();  // two host threads may alias one tensor
    storage = cpu_storage(*block);
  }
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  at::Tensor alias(std::move(impl));
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

void add_access(std::vector<Access>& accesses, const at::Tensor& tensor, Mode mode) {
  if (tensor.numel() == 0) return;
  const std::shared_ptr<Block> block = block_of(tensor.storage());
  if (block == nullptr) return;
  const auto item = static_cast<std::int64_t>(tensor.element_size());
  if (tensor.is_contiguous()) {  // most, and without a look at the strides
    const std::int64_t lo = tensor.storage_offset() * item;
    accesses.push_back({block->id, lo, lo + tensor.numel() * item, mode, nullptr});
    return;
  }
  accesses.push_back(access_of(block->id, tensor.storage_offset(), tensor.sizes().data(), tensor.strides().data(),
                               tensor.sizes().size(), item, mode));
}

at::Tensor empty_on_device(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, device_allocator(),
                                                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype));
}

void enqueue(int device, std::string name, std::vector<Access> accesses, std::function<void()> run) {
  Launch launch;
  launch.name = std::move(name);
  launch.accesses = std::move(accesses);
  launch.run = [run = std::move(run)] {
    try {
      run();
    } catch (const c10::Error& error) {
      throw DeviceError(error.what_without_backtrace());  // without torch's C++ frames, which say nothing here
    }
  };
  launch.source = capture_source();
  Runtime::instance().launch(current_stream(device), std::move(launch));
}

void enqueue_and_wait(int device, const std::string& name, std::vector<Access> accesses, std::function<void()> run) {
  Runtime& runtime = Runtime::instance();
  runtime.count_synchronization(name);
  enqueue(device, name, std::move(accesses), std::move(run));
  runtime.synchronize_stream(current_stream(device), name, capture_source());
}

}  // namespace accel_streams::fake
