#include "trace.h"

namespace accel_streams::fake {

std::int32_t host_thread_index() {
  static std::atomic<std::int32_t> next{0};
  thread_local const std::int32_t index = next.fetch_add(1);
  return index;
}

}  // namespace accel_streams::fake
