// Devices, streams and events: torch's device guard on the simulated runtime.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <map>

#include "compat.h"
#include "glue.h"

namespace accel_streams::fake {
namespace {

std::atomic<int> g_device_count{8};
thread_local int t_device = 0;
// Which stream is current is a property of the host thread, as on CUDA.
thread_local std::map<int, StreamKey> t_streams;

// Where the streams were made that were made while a trace was recorded. Guarded by the runtime's lock.
auto* const g_stream_places = new std::vector<std::pair<StreamKey, SourceId>>();

struct EventHandle {
  int device = 0;
  bool timing = false;
  PointRef point;
};

}  // namespace

std::vector<std::pair<StreamKey, SourceId>> stream_places() {
  const auto guard = Runtime::instance().lock();
  return *g_stream_places;
}

int device_count() { return g_device_count.load(); }

void set_device_count(int count) {
  TORCH_CHECK(count >= 1 && count <= 64, "the fake device can have 1 to 64 indices, got ", count);
  g_device_count.store(count);
}

void check_device_index(int index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "fake:", index, " does not exist: there are ", device_count(),
              " fake devices, with indices from 0");
}

int current_device() { return t_device; }

void set_current_device(int index) {
  check_device_index(index);
  t_device = index;
}

StreamKey current_stream(int device) {
  const auto found = t_streams.find(device);
  return found == t_streams.end() ? StreamKey{device, 0} : found->second;
}

StreamKey exchange_current_stream(StreamKey stream) {
  const StreamKey previous = current_stream(stream.device);
  t_streams[stream.device] = stream;
  return previous;
}

c10::Stream to_torch(StreamKey key) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kFake, static_cast<c10::DeviceIndex>(key.device)), key.id);
}

StreamKey from_torch(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == kFake, "expected a stream of the fake device, got one of ", stream.device());
  return {stream.device_index(), stream.id()};
}

namespace {

struct GuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device.index() >= 0) set_current_device(device.index());
    return previous;
  }
  c10::Device getDevice() const override {
    return c10::Device(kFake, static_cast<c10::DeviceIndex>(t_device));
  }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) t_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::Stream getStream(c10::Device device) const noexcept(kStreamsAreNoexcept) override {
    return to_torch(current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return to_torch({index_of(device), 0}); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const int index = index_of(device);
    check_device_index(index);
    const SourceId place = capture_source();
    const StreamKey key = Runtime::instance().new_stream(index, priority);
    if (place != kNoSource) {
      const auto guard = Runtime::instance().lock();
      g_stream_places->emplace_back(key, place);
    }
    return to_torch(key);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept(kStreamsAreNoexcept) override {
    const StreamKey key = from_torch(stream);
    TORCH_CHECK(Runtime::instance().exists(key), "no stream with id ", key.id, " exists on fake:", key.device,
                "; create streams with torch.Stream(device='fake')");
    return to_torch(exchange_current_stream(key));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const /* new in 2.11 */ {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(stream.id()));
  }

  bool queryStream(const c10::Stream& stream) const override {
    return Runtime::instance().query_stream(from_torch(stream), capture_source());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Runtime::instance().synchronize_stream(from_torch(stream), "", capture_source());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    Runtime::instance().synchronize_device(index < 0 ? t_device : index, capture_source());
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag)
      const override {
    const StreamKey key = from_torch(stream);
    auto* handle = static_cast<EventHandle*>(*event);
    TORCH_CHECK(handle == nullptr || handle->device == key.device, "this event belongs to fake:",
                handle == nullptr ? 0 : handle->device, " and can't be recorded on a stream of fake:", key.device,
                "; create one event for each device");
    PointRef point = Runtime::instance().record(key, true, capture_source());
    if (handle == nullptr) {
      // torch owns the handle and gives it back to destroyEvent.
      auto created = std::make_unique<EventHandle>();
      created->device = key.device;
      created->timing = flag == c10::EventFlag::BACKEND_DEFAULT;
      handle = created.release();
      *event = handle;
    }
    handle->point = std::move(point);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    Runtime::instance().wait(from_torch(stream), static_cast<EventHandle*>(event)->point, capture_source());
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    return Runtime::instance().query_point(static_cast<EventHandle*>(event)->point, capture_source());
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    Runtime::instance().synchronize_point(static_cast<EventHandle*>(event)->point, capture_source());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<EventHandle> owned(static_cast<EventHandle*>(event));
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const auto* a = static_cast<EventHandle*>(first);
    const auto* b = static_cast<EventHandle*>(second);
    TORCH_CHECK_VALUE(a != nullptr && b != nullptr, "both events must be recorded before their elapsed time is read");
    TORCH_CHECK_VALUE(a->device == b->device, "the elapsed time of events of two devices (fake:", a->device,
                      " and fake:", b->device, ") is not defined");
    const auto guard = Runtime::instance().lock();  // another thread may be running what sets the times
    return static_cast<double>(b->point->time - a->point->time) / 1e6;  // milliseconds
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;

 private:
  static int index_of(c10::Device device) { return device.index() < 0 ? t_device : device.index(); }
};

void GuardImpl::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  if (data.get_context() == nullptr || data.device().type() != kFake) return;
  const auto& block = *static_cast<std::shared_ptr<Block>*>(data.get_context());
  Memory::instance().record_stream(block, from_torch(stream));
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

}  // namespace
}  // namespace accel_streams::fake
