// What Python sees of the device. The package around it turns this into a public interface.
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <exception>
#include <thread>

#include "collectives.h"
#include "../torch/glue.h"
#include "source.h"

namespace py = pybind11;

namespace accel_streams::fake {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

py::tuple stream_tuple(StreamKey key) { return py::make_tuple(key.device, key.id); }

py::tuple access_tuples(const std::vector<Access>& accesses) {
  py::tuple out(accesses.size());
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const Access& a = accesses[i];
    out[i] = py::make_tuple(a.block, a.lo, a.hi, static_cast<int>(a.mode));
  }
  return out;
}

// Streams and names recur in nearly every record: build each once.
class Interned {
 public:
  py::object stream(StreamKey key) {
    auto& entry = streams_[key];
    if (!entry) entry = stream_tuple(key);
    return entry;
  }
  py::object name(const std::string& text) {
    auto& entry = names_[text];
    if (!entry) entry = py::str(text);
    return entry;
  }

 private:
  std::map<StreamKey, py::object> streams_;
  std::unordered_map<std::string, py::object> names_;
};

py::object record_tuple(const TraceRecord& r, Interned& interned) {
  const auto source = [&r] { return py::reinterpret_steal<py::object>(source_tuple(r.source)); };
  const py::object stream = interned.stream(r.stream);
  switch (r.kind) {
    case RecordKind::Launch:
      return py::make_tuple(interned.name("launch"), r.seq, r.thread, stream, interned.name(r.name),
                            access_tuples(r.accesses), source());
    case RecordKind::Record:
      return py::make_tuple(interned.name("record"), r.seq, r.thread, stream, source());
    case RecordKind::Wait:
      return py::make_tuple(interned.name("wait"), r.seq, r.thread, stream, r.reference, source());
    case RecordKind::SyncStream:
      return py::make_tuple(interned.name("sync_stream"), r.seq, r.thread, stream, interned.name(r.name), source());
    case RecordKind::SyncEvent:
      return py::make_tuple(interned.name("sync_event"), r.seq, r.thread, r.reference, source());
    case RecordKind::SyncDevice:
      return py::make_tuple(interned.name("sync_device"), r.seq, r.thread, r.stream.device, source());
    case RecordKind::Alloc:
      return py::make_tuple(interned.name("alloc"), r.seq, r.thread, stream, r.reference, r.first, source());
    case RecordKind::RecordStream:
      return py::make_tuple(interned.name("record_stream"), r.seq, r.thread, stream, r.reference);
    case RecordKind::Free:
      return py::make_tuple(interned.name("free"), r.seq, r.thread, stream, r.reference);
    case RecordKind::Reuse:
      return py::make_tuple(interned.name("reuse"), r.seq, r.thread, stream, r.reference);
    case RecordKind::Ran:
      return py::make_tuple(interned.name("ran"), r.seq, r.reference, r.first, r.second);
    case RecordKind::Name:
      return py::make_tuple(interned.name("name"), r.seq, r.thread, r.reference, interned.name(r.name));
  }
  throw DeviceError("internal error: unknown kind of trace record");
}

py::list take_trace() {
  std::vector<TraceRecord> records;
  {
    const py::gil_scoped_release no_gil;
    const auto guard = Runtime::instance().lock();
    records = Runtime::instance().trace().take();
  }
  Interned interned;
  py::list out(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) out[i] = record_tuple(records[i], interned);
  return out;
}

// Python ends a thread that wants the interpreter's lock after its end by unwinding it, and the unwinding meets
// noexcept functions of autograd's threads, which aborts the process. Newer Pythons let such a thread hang; so
// does this.
std::terminate_handler g_terminate = nullptr;
std::thread::id g_ending_thread;

void hang_unless_ending() {
  while (std::this_thread::get_id() != g_ending_thread) std::this_thread::sleep_for(std::chrono::hours(1));
  g_terminate();
}

void hang_threads_at_exit() {
  if (g_terminate != nullptr) return;
  g_ending_thread = std::this_thread::get_id();
  g_terminate = std::set_terminate(&hang_unless_ending);
}

struct Gate {
  PointRef point;
};

void* release_gil() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }
void take_gil(void* state) {
  if (state != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

py::dict memory_stats(int device) {
  const MemoryStats stats = Memory::instance().stats(device);
  py::dict out;
  out["allocated"] = stats.allocated;
  out["peak_allocated"] = stats.peak_allocated;
  out["reserved"] = stats.reserved;
  out["peak_reserved"] = stats.peak_reserved;
  out["allocations"] = stats.allocations;
  return out;
}

void spin(int device, std::int64_t nanoseconds) {
  TORCH_CHECK(nanoseconds >= 0, "a delay can't be negative, got ", nanoseconds, " ns");
  Launch launch;
  launch.name = "fake::_sleep";
  launch.cost = nanoseconds;
  launch.source = capture_source();
  Runtime::instance().launch(current_stream(device), std::move(launch));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  Runtime& runtime = Runtime::instance();
  runtime.set_block_hooks(&release_gil, &take_gil);
  runtime.set_describe_source(&describe_source);
  py::register_exception<DeviceError>(m, "DeviceError", PyExc_RuntimeError);

  m.def("device_count", &device_count);
  m.def("set_device_count", &set_device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("current_stream", [](int device) { return current_stream(device).id; });
  m.def("exchange_stream", [](int device, std::int64_t id) {
    const StreamKey key{device, id};
    TORCH_CHECK(Runtime::instance().exists(key), "no stream with id ", id, " exists on fake:", device);
    return exchange_current_stream(key).id;
  });

  m.def("default_generator", [](int device) {
    check_device_index(device);
    return default_generator(device);
  });

  m.def("stream_places", [] {
    py::list out;
    for (const auto& [key, place] : stream_places()) {
      out.append(py::make_tuple(key.device, key.id, py::reinterpret_steal<py::object>(source_tuple(place))));
    }
    return out;
  });

  m.def("schedule_names", &schedule_names);
  m.def("set_schedule", [](const std::string& name, std::uint64_t seed) { Runtime::instance().set_schedule(name, seed); });
  m.def("schedule", [] { return py::make_tuple(Runtime::instance().schedule_name(), Runtime::instance().schedule_seed()); });
  m.def("set_capacity", [](std::size_t entries) { Runtime::instance().set_capacity(entries); });
  m.def("set_hold_timeout", [](double seconds) { Runtime::instance().set_hold_timeout(seconds); });

  m.def("synchronize_device", [](int device) { Runtime::instance().synchronize_device(device, capture_source()); }, NoGil());
  m.def("hang_threads_at_exit", &hang_threads_at_exit);
  m.def("drain", [] { Runtime::instance().drain(); }, NoGil());
  py::class_<Gate>(m, "Gate").def("release", [](Gate& gate) { Runtime::instance().open(gate.point); }, NoGil())
      .def_property_readonly("released", [](const Gate& gate) {
        const auto guard = Runtime::instance().lock();
        return gate.point->done;
      });
  m.def("hold", [](int device, std::int64_t id) { return Gate{Runtime::instance().hold({device, id})}; }, NoGil());
  m.def("spin", &spin, NoGil());

  m.def("operations", [] { return Runtime::instance().operations(); });
  m.def("pending", [] { return Runtime::instance().pending(); });
  m.def("host_clock", [] { return Runtime::instance().host_clock(); });
  m.def("synchronizations", [] { return Runtime::instance().synchronizations(); });
  m.def("reset_counters", [] { Runtime::instance().reset_counters(); });
  m.def("memory_stats", &memory_stats);
  m.def("reset_peak_memory_stats", [](int device) { Memory::instance().reset_peaks(device); });
  m.def("empty_cache", [] { Memory::instance().empty_cache(); });

  m.def("trace_enable", [](bool on) { Runtime::instance().trace().enable(on); });
  m.def("trace_sources", &set_capture_sources);
  m.def("trace_take", &take_trace);
  m.def("trace_sink", [](const py::object& sink, std::size_t records) {
    set_trace_sink(sink.is_none() ? nullptr : sink.ptr(), records);
  });
  m.def("name_storage", [](const at::Tensor& tensor, const std::string& label) {
    const auto block = block_of(tensor.storage());
    if (block != nullptr) Memory::instance().name(block->id, label);
  });
  m.def("block_id", [](const at::Tensor& tensor) {
    const auto block = block_of(tensor.storage());
    return block == nullptr ? std::uint64_t{0} : block->id;
  });

  bind_collectives(m);
}

}  // namespace accel_streams::fake
