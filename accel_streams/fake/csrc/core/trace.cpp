#include "trace.h"

#include <algorithm>

namespace accel_streams::fake {
namespace {

// An allocation of the records at hand.
struct Life {
  StreamKey stream;
  std::int32_t thread = 0;
  std::uint64_t seq = 0;
  bool here = false;   // it was allocated in these records
  bool ended = false;  // and its memory handed back in them
  bool shared = false;
};

bool keeps_block(const TraceRecord& record, const std::vector<Life>& lives, std::uint64_t base) {
  const std::uint64_t index = record.reference - base;
  if (record.reference < base || index >= lives.size()) return true;
  const Life& life = lives[index];
  return !life.here || !life.ended || life.shared;
}

}  // namespace

std::int32_t host_thread_index() {
  static std::atomic<std::int32_t> next{0};
  thread_local const std::int32_t index = next.fetch_add(1);
  return index;
}

void Hosts::note(const TraceRecord& record) {
  if (record.kind == RecordKind::Release) {
    Known& token = tokens_[record.reference] = threads_[record.thread];
    token[record.thread] = record.seq;
  } else if (record.kind == RecordKind::Acquire) {
    Known& own = threads_[record.thread];
    for (const auto& [thread, seq] : tokens_[record.reference]) own[thread] = std::max(own[thread], seq);
  }
}

bool Hosts::knows(std::int32_t thread, std::int32_t other, std::uint64_t seq) const {
  const auto own = threads_.find(thread);
  if (own == threads_.end()) return false;
  const auto known = own->second.find(other);
  return known != own->second.end() && known->second >= seq;
}

void leave_out_private(std::vector<TraceRecord>& records, Hosts& hosts) {
  // Allocations are numbered in order, so those made here have numbers of one short range.
  std::uint64_t base = 0;
  std::uint64_t last = 0;
  for (const TraceRecord& record : records) {
    if (record.kind != RecordKind::Alloc) continue;
    if (base == 0) base = record.reference;
    last = record.reference;
  }
  std::vector<Life> lives(base == 0 ? 0 : last - base + 1);
  const auto life_of = [&lives, base](std::uint64_t block) -> Life* {
    return block < base || block - base >= lives.size() ? nullptr : &lives[block - base];
  };
  for (const TraceRecord& record : records) {
    switch (record.kind) {
      case RecordKind::Alloc: {
        Life& life = *life_of(record.reference);
        life.stream = record.stream;
        life.thread = record.thread;
        life.seq = record.seq;
        life.here = true;
        break;
      }
      case RecordKind::Launch:
        for (const Access& access : record.accesses) {
          Life* const life = life_of(access.block);
          if (life == nullptr || life->shared) continue;
          life->shared = life->stream != record.stream ||
                         (life->thread != record.thread && !hosts.knows(record.thread, life->thread, life->seq));
        }
        break;
      case RecordKind::RecordStream:
      case RecordKind::Free:
        if (Life* const life = life_of(record.reference)) {
          life->shared |= record.kind == RecordKind::RecordStream ||
                          (life->thread != record.thread && !hosts.knows(record.thread, life->thread, life->seq));
        }
        break;
      case RecordKind::Reuse:
        if (Life* const life = life_of(record.reference)) life->ended = true;
        break;
      case RecordKind::Release:
      case RecordKind::Acquire:
        hosts.note(record);
        break;
      default:
        break;
    }
  }
  if (records.empty()) return;
  TraceRecord summary;
  summary.kind = RecordKind::LeftOut;
  summary.seq = records.back().seq;
  summary.thread = records.back().thread;
  std::uint64_t& left_out = summary.reference;
  std::size_t to = 0;
  for (TraceRecord& record : records) {
    bool keep = true;
    switch (record.kind) {
      case RecordKind::Launch: {
        auto& accesses = record.accesses;
        accesses.erase(std::remove_if(accesses.begin(), accesses.end(),
                                      [&](const Access& access) {
                                        const Life* const life = life_of(access.block);
                                        return life != nullptr && life->here && life->ended && !life->shared;
                                      }),
                       accesses.end());
        keep = !accesses.empty();
        left_out += keep ? 0 : 1;
        break;
      }
      case RecordKind::Alloc:
      case RecordKind::Free:
      case RecordKind::Reuse:
      case RecordKind::Name:
        keep = keeps_block(record, lives, base);
        break;
      default:
        break;
    }
    if (!keep) continue;
    if (&records[to] != &record) records[to] = std::move(record);
    ++to;
  }
  records.resize(to);
  if (left_out > 0) records.push_back(std::move(summary));
}

std::vector<TraceRecord> Trace::take() {
  std::vector<TraceRecord> out;
  out.swap(records_);
  publish_size();
  if (brief()) leave_out_private(out, hosts_);
  return out;
}

}  // namespace accel_streams::fake
