// Plain value types of the simulated device. Nothing here knows torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace accel_streams::fake {

// Virtual time in nanoseconds. It depends on the program, never on the machine.
using Nanoseconds = std::int64_t;

struct StreamKey {
  int device = 0;
  std::int64_t id = 0;

  friend bool operator==(StreamKey a, StreamKey b) { return a.device == b.device && a.id == b.id; }
  friend bool operator!=(StreamKey a, StreamKey b) { return !(a == b); }
  friend bool operator<(StreamKey a, StreamKey b) {
    return a.device != b.device ? a.device < b.device : a.id < b.id;
  }
};

enum class Mode : std::uint8_t { Read = 1, Write = 2, ReadWrite = 3 };

// Bytes of one allocation between `lo` and `hi`: all of them, or those that `shape` says.
struct Access {
  std::uint64_t block = 0;
  std::int64_t lo = 0;
  std::int64_t hi = 0;
  Mode mode = Mode::Read;
  // width, n1, s1, n2, s2, ... in bytes, the largest stride first: the bytes from lo + k1 * s1 + k2 * s2 + ... on,
  // `width` of them, for every k below its n. Null for all bytes.
  std::shared_ptr<const std::vector<std::int64_t>> shape = nullptr;
};

// The access of a strided view: sizes, strides and offset in elements of `item` bytes. No size may be 0.
Access access_of(std::uint64_t block, std::int64_t offset, const std::int64_t* sizes, const std::int64_t* strides,
                 std::size_t dimensions, std::int64_t item, Mode mode);

// Where the host submitted an operation: an index into a table kept by the caller, or none.
using SourceId = std::int32_t;
constexpr SourceId kNoSource = -1;

class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace accel_streams::fake
