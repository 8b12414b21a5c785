// Memory of the simulated device: a model of a caching allocator with one pool a stream.
//
// Memory that was freed is filled with 0xFF (a NaN in every floating type) by the next allocation on its
// stream, in that stream's order: the earliest moment at which a caching allocator could hand it out.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime.h"

namespace accel_streams::fake {

// Bytes that stay mapped for as long as a queued operation refers to them.
class Slab {
 public:
  explicit Slab(std::size_t bytes);  // throws std::bad_alloc; filled with the poison
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void poison() const;

 private:
  void* data_;
  std::size_t size_;
};

// One allocation: the memory between an allocate and its free. `id` is never used twice.
struct Block {
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  StreamKey owner;
  std::shared_ptr<Slab> slab;
  std::vector<StreamKey> recorded;      // by record_stream
  std::shared_ptr<void> attachment;     // for the layer above
};

struct MemoryStats {
  std::uint64_t allocated = 0;
  std::uint64_t peak_allocated = 0;
  std::uint64_t reserved = 0;
  std::uint64_t peak_reserved = 0;
  std::uint64_t allocations = 0;
};

class Memory {
 public:
  static Memory& instance();  // leaked, as the runtime is

  std::shared_ptr<Block> allocate(StreamKey stream, std::size_t bytes, SourceId source);
  void free(const std::shared_ptr<Block>& block);
  void record_stream(const std::shared_ptr<Block>& block, StreamKey stream);
  void name(std::uint64_t block, const std::string& label);

  void empty_cache();
  MemoryStats stats(int device);
  void reset_peaks(int device);

 private:
  using PoolKey = std::pair<StreamKey, std::size_t>;
  struct Deferred {
    std::shared_ptr<Block> block;
    std::vector<PointRef> points;
  };

  void collect_deferred();
  void reuse_freed(StreamKey stream);
  void note(RecordKind kind, StreamKey stream, std::uint64_t block, std::int64_t bytes, SourceId source);

  // All guarded by the runtime's lock.
  Runtime& runtime_ = Runtime::instance();
  std::uint64_t next_id_ = 0;
  std::map<StreamKey, std::vector<std::shared_ptr<Block>>> freed_;
  std::list<Deferred> deferred_;
  std::map<PoolKey, std::vector<std::shared_ptr<Slab>>> pool_;
  std::map<int, std::size_t> pooled_bytes_;
  std::map<int, MemoryStats> stats_;
};

}  // namespace accel_streams::fake
