#include <algorithm>

#include "types.h"

namespace accel_streams::fake {

Access access_of(std::uint64_t block, std::int64_t offset, const std::int64_t* sizes, const std::int64_t* strides,
                 std::size_t dimensions, std::int64_t item, Mode mode) {
  struct Dimension {
    std::int64_t stride;
    std::int64_t count;
  };
  std::vector<Dimension> given;
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (sizes[d] > 1 && strides[d] > 0) given.push_back({strides[d] * item, sizes[d]});
  }
  std::sort(given.begin(), given.end(), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  // Put together what leaves no gap, so that one set of bytes has one form.
  std::int64_t width = item;
  std::int64_t extent = item;
  std::vector<Dimension> kept;
  for (const Dimension& next : given) {
    extent += (next.count - 1) * next.stride;
    if (kept.empty() && next.stride <= width) {
      width = extent;
    } else if (!kept.empty() && next.stride % kept.back().stride == 0 &&
               next.stride / kept.back().stride <= kept.back().count) {
      kept.back().count += (next.count - 1) * (next.stride / kept.back().stride);
    } else {
      kept.push_back(next);
    }
  }
  Access access{block, offset * item, offset * item + extent, mode, nullptr};
  if (kept.empty()) return access;
  std::vector<std::int64_t> shape{width};
  for (auto each = kept.rbegin(); each != kept.rend(); ++each) {
    shape.push_back(each->count);
    shape.push_back(each->stride);
  }
  access.shape = std::make_shared<const std::vector<std::int64_t>>(std::move(shape));
  return access;
}

}  // namespace accel_streams::fake
