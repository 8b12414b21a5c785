// The differences between torch releases, in one place. Supported: 2.6 and later.
#pragma once

#include <torch/version.h>

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
