// Between torch's types and the simulated device's: current device and stream, memory, aliases.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../core/memory.h"
#include "../core/runtime.h"

namespace accel_streams::fake {

constexpr c10::DeviceType kFake = c10::DeviceType::PrivateUse1;

// --- device.cpp: the device count is fixed once, before the first use.
int device_count();
void set_device_count(int count);
int current_device();
void set_current_device(int index);
StreamKey current_stream(int device);
StreamKey exchange_current_stream(StreamKey stream);
c10::Stream to_torch(StreamKey key);
StreamKey from_torch(const c10::Stream& stream);
void check_device_index(int index);
std::vector<std::pair<StreamKey, SourceId>> stream_places();

// --- allocator.cpp
// The allocation behind a device storage; null when the storage holds no bytes.
std::shared_ptr<Block> block_of(const c10::Storage& storage);
void resize_storage(const c10::Storage& storage, std::size_t bytes);
bool is_pinned(const void* data);
// Fills the memory queues may hand out; every allocation is made on the device's current stream.
c10::Allocator* device_allocator();
at::Generator default_generator(int device);

// --- alias.cpp
// A CPU tensor over the device tensor's memory. It keeps the memory mapped and leaves the device tensor's
// use counts alone: autograd decides by use count whether it may steal a gradient.
at::Tensor alias_on_cpu(const at::Tensor& tensor);
void add_access(std::vector<Access>& accesses, const at::Tensor& tensor, Mode mode);
at::Tensor empty_on_device(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);

// Queues work on the current stream of `device`.
void enqueue(int device, std::string name, std::vector<Access> accesses, std::function<void()> run);
// The same, and the host waits for it. Counted: it may hide a missing wait.
void enqueue_and_wait(int device, const std::string& name, std::vector<Access> accesses, std::function<void()> run);

// Runs torch's CPU kernels as they are: no autograd, no autocast, no Python dispatch.
class PlainCpuScope {
 public:
  PlainCpuScope();

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

// --- source.cpp
// The innermost line of Python outside torch that submits the present operation, or the autograd node that
// does. kNoSource unless the trace asks for it.
SourceId capture_source();

// While one exists, its thread is at one place: what an operator allocates and queues has one source, looked for once.
class SourceScope {
 public:
  SourceScope();
  ~SourceScope();
  SourceScope(const SourceScope&) = delete;
  SourceScope& operator=(const SourceScope&) = delete;

 private:
  bool outermost_;
};
void set_capture_sources(bool on);

}  // namespace accel_streams::fake
