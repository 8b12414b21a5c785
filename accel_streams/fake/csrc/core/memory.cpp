#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace accel_streams::fake {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr int kPoison = 0xFF;
// Slabs kept for reuse on a device; beyond it, memory goes back to the host.
constexpr std::size_t kPoolLimit = std::size_t{64} << 20;

std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kGrain = 512;
  if (bytes > std::numeric_limits<std::size_t>::max() - kGrain) throw std::bad_alloc();
  return std::max(kGrain, (bytes + kGrain - 1) / kGrain * kGrain);
}

}  // namespace

Slab::Slab(std::size_t bytes) : data_(std::aligned_alloc(kAlignment, bytes)), size_(bytes) {
  if (data_ == nullptr) throw std::bad_alloc();
  poison();
}

Slab::~Slab() { std::free(data_); }

void Slab::poison() const { std::memset(data_, kPoison, size_); }

Memory& Memory::instance() {
  static Memory* const memory = new Memory();
  return *memory;
}

void Memory::note(RecordKind kind, StreamKey stream, std::uint64_t block, std::int64_t bytes, SourceId source) {
  if (!runtime_.trace().enabled()) return;
  TraceRecord record;
  record.kind = kind;
  record.seq = runtime_.next_seq();
  record.stream = stream;
  record.reference = block;
  record.first = bytes;
  record.source = source;
  runtime_.add_record(std::move(record));
}

std::shared_ptr<Block> Memory::allocate(StreamKey stream, std::size_t bytes, SourceId source) {
  const auto guard = runtime_.lock();
  collect_deferred();
  reuse_freed(stream);

  const std::size_t size = rounded(bytes);
  auto block = std::make_shared<Block>();
  block->id = ++next_id_;
  block->bytes = bytes;
  block->owner = stream;
  MemoryStats& stats = stats_[stream.device];
  auto& pool = pool_[{stream, size}];
  if (!pool.empty()) {
    block->slab = std::move(pool.back());
    pool.pop_back();
    pooled_bytes_[stream.device] -= size;
  } else {
    block->slab = std::make_shared<Slab>(size);
    stats.reserved += size;
    stats.peak_reserved = std::max(stats.peak_reserved, stats.reserved);
  }
  stats.allocated += size;
  stats.peak_allocated = std::max(stats.peak_allocated, stats.allocated);
  ++stats.allocations;
  note(RecordKind::Alloc, stream, block->id, static_cast<std::int64_t>(bytes), source);
  return block;
}

void Memory::free(const std::shared_ptr<Block>& block) {
  const auto guard = runtime_.lock();
  stats_[block->owner.device].allocated -= block->slab->size();
  block->attachment.reset();
  note(RecordKind::Free, block->owner, block->id, 0, kNoSource);
  if (block->recorded.empty()) {
    freed_[block->owner].push_back(block);
    return;
  }
  Deferred deferred{block, {}};
  for (const StreamKey key : block->recorded) deferred.points.push_back(runtime_.record(key, false));
  deferred_.push_back(std::move(deferred));
}

void Memory::record_stream(const std::shared_ptr<Block>& block, StreamKey stream) {
  const auto guard = runtime_.lock();
  if (stream == block->owner) return;
  runtime_.queue(stream);  // throws here rather than at the free, which nobody can see fail
  note(RecordKind::RecordStream, stream, block->id, 0, kNoSource);
  auto& recorded = block->recorded;
  if (std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) recorded.push_back(stream);
}

void Memory::name(std::uint64_t block, const std::string& label) {
  const auto guard = runtime_.lock();
  if (!runtime_.trace().enabled()) return;
  TraceRecord record;
  record.kind = RecordKind::Name;
  record.seq = runtime_.next_seq();
  record.reference = block;
  record.name = label;
  runtime_.add_record(std::move(record));
}

void Memory::collect_deferred() {
  if (!deferred_.empty()) runtime_.note_poll();
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    const bool finished = std::all_of(it->points.begin(), it->points.end(),
                                      [](const PointRef& point) { return point->done; });
    if (!finished) {
      ++it;
      continue;
    }
    freed_[it->block->owner].push_back(it->block);
    it = deferred_.erase(it);
  }
}

void Memory::reuse_freed(StreamKey stream) {
  const auto found = freed_.find(stream);
  if (found == freed_.end() || found->second.empty()) return;
  std::vector<std::shared_ptr<Block>> blocks;
  blocks.swap(found->second);
  std::vector<std::shared_ptr<Slab>> slabs;
  for (const auto& block : blocks) slabs.push_back(block->slab);
  Launch poison;
  poison.name = "allocator: reuse";
  poison.cost = 0;
  poison.traced = false;
  poison.run = [slabs] {
    for (const auto& slab : slabs) slab->poison();
  };
  try {
    runtime_.launch(stream, std::move(poison));
  } catch (const DeviceError&) {  // the queue is full
    auto& again = freed_[stream];
    again.insert(again.begin(), blocks.begin(), blocks.end());
    throw;
  }
  for (const auto& block : blocks) note(RecordKind::Reuse, stream, block->id, 0, kNoSource);
  for (auto& slab : slabs) {
    const std::size_t size = slab->size();
    if (pooled_bytes_[stream.device] + size > kPoolLimit) {
      stats_[stream.device].reserved -= size;
      continue;  // freed when the queued work that refers to it has run
    }
    pooled_bytes_[stream.device] += size;
    pool_[{stream, size}].push_back(std::move(slab));
  }
}

void Memory::empty_cache() {
  const auto guard = runtime_.lock();
  for (const auto& [key, slabs] : pool_) {
    const std::size_t bytes = key.second * slabs.size();
    stats_[key.first.device].reserved -= bytes;
    pooled_bytes_[key.first.device] -= bytes;
  }
  pool_.clear();
}

MemoryStats Memory::stats(int device) {
  const auto guard = runtime_.lock();
  return stats_[device];
}

void Memory::reset_peaks(int device) {
  const auto guard = runtime_.lock();
  MemoryStats& stats = stats_[device];
  stats.peak_allocated = stats.allocated;
  stats.peak_reserved = stats.reserved;
}

}  // namespace accel_streams::fake
