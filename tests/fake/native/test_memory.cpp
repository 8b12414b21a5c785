// The model of a caching allocator.
#include <cstring>
#include <limits>
#include <new>

#include "device.h"

namespace native {
namespace {

Memory& memory() { return Memory::instance(); }

std::shared_ptr<Block> allocate(StreamKey stream, std::size_t bytes = 64) {
  return memory().allocate(stream, bytes, kNoSource);
}

unsigned char* bytes_of(const std::shared_ptr<Block>& block) {
  return static_cast<unsigned char*>(block->slab->data());
}

bool poisoned(const std::shared_ptr<Block>& block) {
  for (std::size_t i = 0; i < block->bytes; ++i) {
    if (bytes_of(block)[i] != 0xFF) return false;
  }
  return true;
}

void launch_fill(StreamKey stream, const std::shared_ptr<Block>& block, int value) {
  launch(stream, [slab = block->slab, value] { std::memset(slab->data(), value, slab->size()); });
}

// Keeps looking at memory that was freed, as a stream that was given no record_stream does.
struct Watch {
  explicit Watch(const std::shared_ptr<Block>& block) : slab(block->slab) {}
  bool holds(int value) const {
    const auto* const bytes = static_cast<const unsigned char*>(slab->data());
    for (std::size_t i = 0; i < slab->size(); ++i) {
      if (bytes[i] != value) return false;
    }
    return true;
  }
  std::shared_ptr<Slab> slab;
};

TEST_EACH_SCHEDULE(new_memory_is_poisoned_and_aligned) {
  const StreamKey stream = new_stream();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{512}, std::size_t{513}, std::size_t{100'000}}) {
    const auto block = allocate(stream, bytes);
    CHECK(block->slab->size() >= bytes);
    CHECK(poisoned(block));
    CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(block->slab->data()) % 64, 0U);
    memory().free(block);
  }
}

TEST_EACH_SCHEDULE(freed_memory_keeps_its_contents_until_the_next_allocation_on_its_stream) {
  const StreamKey stream = new_stream();
  const StreamKey other = new_stream();
  auto block = allocate(stream);
  const Watch watch(block);
  launch_fill(stream, block, 1);
  synchronize(stream);
  memory().free(block);
  block.reset();
  CHECK(watch.holds(1));
  const auto elsewhere = allocate(other);  // of another stream: no reuse
  device().drain();
  CHECK(watch.holds(1));
  const auto again = allocate(stream);
  device().drain();
  CHECK(watch.holds(0xFF));
  CHECK(again->slab == watch.slab);
  CHECK(elsewhere->slab != watch.slab);
  memory().free(again);
  memory().free(elsewhere);
}

TEST_EACH_SCHEDULE(the_poison_comes_in_the_order_of_the_stream) {
  const StreamKey stream = new_stream();
  Log seen;
  const auto first = allocate(stream);
  launch_fill(stream, first, 1);
  synchronize(stream);
  launch(stream, [slab = first->slab, &seen] { seen.push_back(*static_cast<unsigned char*>(slab->data())); });
  memory().free(first);
  const auto second = allocate(stream);
  CHECK(second->slab == first->slab);
  CHECK(second->id != first->id);
  launch(stream, [slab = second->slab, &seen] { seen.push_back(*static_cast<unsigned char*>(slab->data())); });
  launch_fill(stream, second, 2);
  launch(stream, [slab = second->slab, &seen] { seen.push_back(*static_cast<unsigned char*>(slab->data())); });
  synchronize(stream);
  CHECK_EQUAL(text(seen), "1 255 2 ");
  memory().free(second);
}

TEST(a_reader_on_another_stream_that_is_late_finds_the_poison) {
  // What the model is for: without record_stream, some schedule shows it.
  const StreamKey stream = new_stream();
  const StreamKey reader = new_stream();
  device().set_schedule("fifo", 0);
  const auto block = allocate(stream);
  Log seen;
  launch_fill(stream, block, 1);
  device().wait(reader, device().record(stream));
  launch(reader, [slab = block->slab, &seen] { seen.push_back(*static_cast<unsigned char*>(slab->data())); });
  memory().free(block);
  const auto next = allocate(stream);
  device().drain();
  CHECK_EQUAL(text(seen), "255 ");
  memory().free(next);
}

TEST_EACH_SCHEDULE(recorded_memory_comes_back_only_after_the_recorded_streams) {
  const StreamKey stream = new_stream();
  const StreamKey reader = new_stream();
  const StreamKey second_reader = new_stream();
  auto block = allocate(stream);
  const Watch watch(block);
  launch_fill(stream, block, 1);
  memory().record_stream(block, reader);
  memory().record_stream(block, second_reader);
  memory().record_stream(block, reader);
  memory().record_stream(block, stream);  // its own: nothing to wait for
  CHECK_EQUAL(block->recorded.size(), 2U);
  Held held(reader);
  memory().free(block);
  block.reset();
  for (int i = 0; i < 3; ++i) {
    const auto other = allocate(stream);
    synchronize(stream);
    synchronize(second_reader);
    CHECK(other->slab != watch.slab);
    CHECK(watch.holds(1));
    memory().free(other);
  }
  held.open();
  synchronize(reader);
  std::vector<std::shared_ptr<Block>> next{allocate(stream), allocate(stream)};
  synchronize(stream);
  CHECK(next[0]->slab == watch.slab || next[1]->slab == watch.slab);
  CHECK(watch.holds(0xFF));
  for (const auto& each : next) memory().free(each);
}

TEST_EACH_SCHEDULE(a_recorded_stream_is_waited_for_as_far_as_it_was_at_the_free) {
  const StreamKey stream = new_stream();
  const StreamKey reader = new_stream();
  auto block = allocate(stream);
  const Watch watch(block);
  memory().record_stream(block, reader);
  memory().free(block);
  block.reset();
  const Held held(reader);  // later than the free
  device().synchronize_point(device().record(stream));
  while (device().pending() > 1) device().query_stream(reader);
  const auto next = allocate(stream);
  CHECK(next->slab == watch.slab);
  memory().free(next);
}

TEST(recording_a_stream_that_was_never_made_is_refused_at_once) {
  // At the free there would be nobody to tell: it happens in a destructor.
  const StreamKey stream = new_stream();
  const auto block = allocate(stream);
  CHECK_THROWS(DeviceError, "no stream with id 987654321", memory().record_stream(block, {0, 987654321}));
  memory().free(block);
  const auto next = allocate(stream);
  CHECK(next->slab == block->slab);
  memory().free(next);
}

TEST_EACH_SCHEDULE(the_devices_time_does_not_depend_on_when_memory_comes_back) {
  const auto duration = [] {
    const StreamKey stream = new_stream();
    const StreamKey reader = new_stream();
    const Nanoseconds start = device().host_clock();
    for (int i = 0; i < 10; ++i) {
      const auto block = allocate(stream);
      launch_fill(stream, block, i);
      device().wait(reader, device().record(stream));
      launch(reader, [] {});
      memory().record_stream(block, reader);
      memory().free(block);
      if (i % 3 == 0) synchronize(stream);
    }
    device().synchronize_device(0);
    return device().host_clock() - start;
  };
  const Nanoseconds here = duration();
  device().set_schedule("in-order", 0);
  CHECK_EQUAL(here, duration());
}

TEST(the_numbers_of_a_device_add_up) {
  const int index = fresh_index();
  const StreamKey stream = new_stream(index);
  const auto a = allocate(stream, 1000);  // 1024 in the allocator's grain
  const auto b = allocate(stream, 512);
  MemoryStats stats = memory().stats(index);
  CHECK_EQUAL(stats.allocated, 1536U);
  CHECK_EQUAL(stats.peak_allocated, 1536U);
  CHECK_EQUAL(stats.reserved, 1536U);
  CHECK_EQUAL(stats.allocations, 2U);
  memory().free(a);
  stats = memory().stats(index);
  CHECK_EQUAL(stats.allocated, 512U);
  CHECK_EQUAL(stats.peak_allocated, 1536U);
  CHECK_EQUAL(stats.reserved, 1536U);
  memory().reset_peaks(index);
  CHECK_EQUAL(memory().stats(index).peak_allocated, 512U);
  CHECK_EQUAL(memory().stats(index).peak_reserved, 1536U);
  const auto c = allocate(stream, 1000);  // the freed one again
  CHECK_EQUAL(memory().stats(index).reserved, 1536U);
  memory().free(b);
  memory().free(c);
  const auto d = allocate(stream, 4096);
  CHECK_EQUAL(memory().stats(index).reserved, 1536U + 4096U);
  memory().empty_cache();
  CHECK_EQUAL(memory().stats(index).reserved, 4096U);
  memory().free(d);
  CHECK_EQUAL(memory().stats(index).allocated, 0U);
}

TEST(devices_are_counted_apart) {
  const int one = fresh_index();
  const int two = fresh_index();
  const auto block = allocate({one, 0}, 512);
  CHECK_EQUAL(memory().stats(one).allocated, 512U);
  CHECK_EQUAL(memory().stats(two).allocated, 0U);
  memory().free(block);
}

TEST(the_pool_keeps_no_more_than_its_limit) {
  const int index = fresh_index();
  const StreamKey stream = new_stream(index);
  constexpr std::size_t kBig = std::size_t{33} << 20;  // two of them are more than the limit of 64 MiB
  for (const auto& block : {allocate(stream, kBig), allocate(stream, kBig)}) memory().free(block);
  CHECK_EQUAL(memory().stats(index).reserved, 2 * kBig);
  const auto small = allocate(stream, 512);
  CHECK_EQUAL(memory().stats(index).reserved, kBig + 512);
  synchronize(stream);
  memory().free(small);
  memory().empty_cache();
  CHECK_EQUAL(memory().stats(index).reserved, 512U);
}

TEST(the_pool_hands_out_the_same_memory_for_ever) {
  const StreamKey stream = new_stream(fresh_index());
  auto block = allocate(stream, std::size_t{8} << 20);
  const Slab* const slab = block->slab.get();
  for (int i = 0; i < 10; ++i) {  // more than the pool's limit in sum
    memory().free(block);
    block = allocate(stream, std::size_t{8} << 20);
    CHECK(block->slab.get() == slab);
  }
  memory().free(block);
}

TEST(memory_that_queued_work_refers_to_outlives_the_cache) {
  const StreamKey stream = new_stream(fresh_index());
  auto block = allocate(stream);
  launch_fill(stream, block, 1);
  const std::weak_ptr<Slab> slab = block->slab;
  memory().free(block);
  block.reset();
  const auto next = allocate(stream, 4096);
  memory().empty_cache();
  CHECK(!slab.expired());
  synchronize(stream);  // the address sanitizer watches
  CHECK(slab.expired());
  memory().free(next);
}

TEST(more_than_there_is_is_refused) {
  const int index = fresh_index();
  const StreamKey stream = new_stream(index);
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {kMost, kMost - 511, kMost / 2, std::size_t{1} << 60}) {
    CHECK_THROWS(std::bad_alloc, "", allocate(stream, bytes));
  }
  CHECK_EQUAL(memory().stats(index).allocated, 0U);
  CHECK_EQUAL(memory().stats(index).reserved, 0U);
  memory().free(allocate(stream, 512));
}

TEST(an_allocation_that_finds_the_queue_full_loses_nothing) {
  const int index = fresh_index();
  const StreamKey stream = new_stream(index);
  auto block = allocate(stream);
  const Watch watch(block);
  memory().free(block);
  block.reset();
  device().set_capacity(1);
  Held held(stream);
  const auto fill = [stream] {
    for (int i = 0; i < 1000; ++i) launch(stream, [] {});
  };
  CHECK_THROWS(DeviceError, "queue is full", fill());
  CHECK_THROWS(DeviceError, "queue is full", allocate(stream));
  held.open();
  device().drain();
  const auto next = allocate(stream);
  CHECK(next->slab == watch.slab);
  CHECK_EQUAL(memory().stats(index).reserved, 512U);
  memory().free(next);
}

TEST_EACH_SCHEDULE(what_is_attached_to_a_block_goes_with_its_free) {
  const StreamKey stream = new_stream();
  const auto block = allocate(stream);
  auto attachment = std::make_shared<int>(1);
  block->attachment = attachment;
  CHECK_EQUAL(attachment.use_count(), 2);
  memory().free(block);
  CHECK_EQUAL(attachment.use_count(), 1);
}

}  // namespace
}  // namespace native
