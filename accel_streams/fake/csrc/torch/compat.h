// The differences between torch releases, in one place. Supported: 2.6 and later.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include <chrono>
#include <utility>

#define FAKE_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !FAKE_TORCH_AT_LEAST(2, 6)
#error "the fake device needs torch 2.6 or later"
#endif

// The allocator interface behind torch.accelerator.memory_allocated() and its like.
#if FAKE_TORCH_AT_LEAST(2, 9)
#define FAKE_HAS_DEVICE_ALLOCATOR 1
#else
#define FAKE_HAS_DEVICE_ALLOCATOR 0
#endif

// torch 2.6 makes generators of a PrivateUse1 device by a function that is registered for that.
#if FAKE_TORCH_AT_LEAST(2, 7)
#define FAKE_REGISTERS_GENERATOR 0
#else
#define FAKE_REGISTERS_GENERATOR 1
#endif

// torch 2.6 promises that looking up and exchanging streams never throws.
inline constexpr bool kStreamsAreNoexcept =
    noexcept(std::declval<const c10::impl::DeviceGuardImplInterface&>().getStream(std::declval<c10::Device>()));

// A process group of torch 2.6 keeps the timeout that it was made with.
template <class Backend>
auto set_timeout(Backend& backend, std::chrono::milliseconds timeout, int) -> decltype(backend.setTimeout(timeout)) {
  backend.setTimeout(timeout);
}
template <class Backend>
void set_timeout(Backend&, std::chrono::milliseconds, long) {}
