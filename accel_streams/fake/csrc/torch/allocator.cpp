// Device memory, pinned host memory and the hooks by which torch finds them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "compat.h"
#include "glue.h"

#if FAKE_HAS_DEVICE_ALLOCATOR
#include <c10/core/CachingDeviceAllocator.h>
#endif
#if FAKE_REGISTERS_GENERATOR
#include <ATen/core/GeneratorForPrivateuseone.h>
#endif

namespace accel_streams::fake {
namespace {

void release_block(void* context) {
  const std::unique_ptr<std::shared_ptr<Block>> owned(static_cast<std::shared_ptr<Block>*>(context));
  Memory::instance().free(*owned);
}

c10::DataPtr allocate_on(int device, std::size_t bytes) {
  const c10::Device where(kFake, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0) return {nullptr, where};
  auto owned = std::make_unique<std::shared_ptr<Block>>(
      Memory::instance().allocate(current_stream(device), bytes, capture_source()));
  void* const data = (*owned)->slab->data();
  return {data, owned.release(), &release_block, where};
}

#if FAKE_HAS_DEVICE_ALLOCATOR
using AllocatorBase = c10::DeviceAllocator;
#else
using AllocatorBase = c10::Allocator;
#endif

struct DeviceMemory final : public AllocatorBase {
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_on(current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

#if FAKE_HAS_DEVICE_ALLOCATOR
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override { Memory::instance().empty_cache(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_context() == nullptr) return;
    Memory::instance().record_stream(*static_cast<std::shared_ptr<Block>*>(data.get_context()), from_torch(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryStats stats = Memory::instance().stats(device);
    c10::CachingDeviceAllocator::DeviceStats out;
    auto& allocated = out.allocated_bytes[0];
    allocated.current = static_cast<std::int64_t>(stats.allocated);
    allocated.peak = static_cast<std::int64_t>(stats.peak_allocated);
    out.active_bytes[0] = allocated;
    auto& reserved = out.reserved_bytes[0];
    reserved.current = static_cast<std::int64_t>(stats.reserved);
    reserved.peak = static_cast<std::int64_t>(stats.peak_reserved);
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { Memory::instance().reset_peaks(device); }
#endif
};

// Host memory that copies may read and write while the host goes on.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 64;
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const data = std::aligned_alloc(kAlignment, size);
    TORCH_CHECK(data != nullptr, "out of host memory: can't pin ", bytes, " bytes");
    const std::lock_guard<std::mutex> guard(mutex_);
    ranges_[static_cast<const char*>(data)] = size;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  bool contains(const void* data) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto* const address = static_cast<const char*>(data);
    auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return false;
    --after;
    return address < after->first + after->second;
  }

  static PinnedMemory& instance() {
    static PinnedMemory* const memory = new PinnedMemory();  // leaked: tensors may outlive static destruction
    return *memory;
  }

 private:
  static void release(void* data) {
    PinnedMemory& self = instance();
    {
      const std::lock_guard<std::mutex> guard(self.mutex_);
      self.ranges_.erase(static_cast<const char*>(data));
    }
    std::free(data);
  }

  std::mutex mutex_;
  std::map<const char*, std::size_t> ranges_;
};

struct FakeGenerator final : public at::CPUGeneratorImpl {
  explicit FakeGenerator(c10::DeviceIndex index) {
    device_ = c10::Device(kFake, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const std::vector<at::Generator>& generators() {
  static const std::vector<at::Generator>* const all = [] {
    auto created = std::make_unique<std::vector<at::Generator>>();
    for (int i = 0; i < device_count(); ++i) {
      created->push_back(at::make_generator<FakeGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return created.release();  // leaked, as torch leaks its own
  }();
  return *all;
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<FakeGenerator>(index < 0 ? static_cast<c10::DeviceIndex>(current_device()) : index);
}
#if FAKE_REGISTERS_GENERATOR
REGISTER_GENERATOR_PRIVATEUSE1(new_generator)
#endif

struct Hooks final : public at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const /* new in 2.7 */ { return true; }
  bool isAvailable() const /* new in 2.7 */ { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    const int device = index < 0 ? current_device() : index;
    check_device_index(device);
    return generators()[static_cast<std::size_t>(device)];
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  at::Device getDeviceFromPtr(void*) const override {
    return c10::Device(kFake, static_cast<c10::DeviceIndex>(current_device()));
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::instance(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto previous = static_cast<c10::DeviceIndex>(current_device());
    set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? static_cast<c10::DeviceIndex>(current_device()) : exchangeDevice(index);
  }
};

DeviceMemory g_device_memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_device_memory)

// torch keeps a plain pointer to the hooks for the life of the process.
const bool g_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

c10::Allocator* device_allocator() { return &g_device_memory; }

bool is_pinned(const void* data) { return PinnedMemory::instance().contains(data); }

at::Generator default_generator(int device) { return generators().at(static_cast<std::size_t>(device)); }

std::shared_ptr<Block> block_of(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_context() == nullptr) return nullptr;
  TORCH_CHECK(data.get_deleter() == &release_block, "this storage's memory was not allocated by the fake device");
  return *static_cast<std::shared_ptr<Block>*>(data.get_context());
}

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  const int device = storage.device().index();
  const std::shared_ptr<Block> before = block_of(storage);
  c10::DataPtr fresh = allocate_on(device, bytes);
  const std::size_t kept = std::min(bytes, static_cast<std::size_t>(storage.nbytes()));
  if (kept > 0) {
    const auto after = *static_cast<std::shared_ptr<Block>*>(fresh.get_context());
    const auto length = static_cast<std::int64_t>(kept);
    enqueue(device, "aten::resize_",
            {{before->id, 0, length, Mode::Read}, {after->id, 0, length, Mode::Write}},
            [from = before->slab, to = after->slab, kept] { std::memcpy(to->data(), from->data(), kept); });
  }
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

}  // namespace accel_streams::fake
