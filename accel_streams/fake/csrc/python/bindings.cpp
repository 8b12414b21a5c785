// What Python sees of the device. The package around it turns this into a public interface.
#include <torch/csrc/utils/pybind.h>

#include <array>
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

// A reference that somebody has to take over; null when an error of Python's is set.
using NewReference = PyObject*;

NewReference integer(std::int64_t value) { return PyLong_FromLongLong(value); }
NewReference integer(std::uint64_t value) { return PyLong_FromUnsignedLongLong(value); }
NewReference integer(std::int32_t value) { return PyLong_FromLong(value); }

NewReference borrowed(PyObject* object) {
  Py_INCREF(object);
  return object;
}

// pybind11's make_tuple does the same with several times the work, and each operation pays for it.
template <typename... Items>
NewReference tuple_of(Items... items) {
  PyObject* const tuple = PyTuple_New(sizeof...(items));
  if (tuple == nullptr || ((items == nullptr) || ...)) throw py::error_already_set();
  Py_ssize_t index = 0;
  (PyTuple_SET_ITEM(tuple, index++, items), ...);
  // Numbers, strings and such tuples make no cycles: spare the collector from finding out.
  PyObject_GC_UnTrack(tuple);
  return tuple;
}

NewReference integers(const std::vector<std::int64_t>& values) {
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
  if (tuple == nullptr) throw py::error_already_set();
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), integer(values[i]));
  }
  return tuple;
}

NewReference access_tuples(const std::vector<Access>& accesses) {
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(accesses.size()));
  if (tuple == nullptr) throw py::error_already_set();
  Py_ssize_t index = 0;
  for (const Access& a : accesses) {
    const auto mode = std::int32_t{static_cast<std::uint8_t>(a.mode)};
    PyObject* const item =
        a.shape == nullptr
            ? tuple_of(integer(a.block), integer(a.lo), integer(a.hi), integer(mode))
            : tuple_of(integer(a.block), integer(a.lo), integer(a.hi), integer(mode), integers(*a.shape));
    PyTuple_SET_ITEM(tuple, index++, item);
  }
  // The empty tuple is everybody's.
  if (index > 0) PyObject_GC_UnTrack(tuple);
  return tuple;
}

// Streams and names of operations recur in nearly every record: make each once. Leaked, as Python's end comes first.
class Interned {
  static constexpr std::size_t kKinds = 16;

 public:
  static Interned& instance() {
    static Interned* const instance = new Interned();
    return *instance;
  }
  NewReference stream(StreamKey key) {
    PyObject*& entry = streams_[key];
    if (entry == nullptr) entry = tuple_of(integer(std::int32_t{key.device}), integer(key.id));
    return borrowed(entry);
  }
  NewReference name(const std::string& text) {
    PyObject*& entry = names_[text];
    if (entry == nullptr) entry = PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
    if (entry == nullptr) throw py::error_already_set();
    return borrowed(entry);
  }
  NewReference kind(RecordKind kind) {
    // In the order of RecordKind.
    static constexpr std::array<const char*, kKinds> kNames = {"launch",      "record", "wait",          "sync_stream",
                                                           "sync_event",  "sync_device", "alloc", "record_stream",
                                                           "free",        "reuse",  "ran",           "name",
                                                               "drop",        "release", "acquire",     "left_out"};
    PyObject*& entry = kinds_[static_cast<std::size_t>(kind)];
    if (entry == nullptr) entry = PyUnicode_InternFromString(kNames[static_cast<std::size_t>(kind)]);
    if (entry == nullptr) throw py::error_already_set();
    return borrowed(entry);
  }

 private:
  std::map<StreamKey, PyObject*> streams_;
  std::unordered_map<std::string, PyObject*> names_;
  std::array<PyObject*, kKinds> kinds_{};
};

NewReference record_tuple(const TraceRecord& r, Interned& interned) {
  PyObject* const kind = interned.kind(r.kind);
  switch (r.kind) {
    case RecordKind::Launch:
      return tuple_of(kind, integer(r.seq), integer(r.thread), interned.stream(r.stream), interned.name(r.name),
                      access_tuples(r.accesses), source_tuple(r.source));
    case RecordKind::Record:
      return tuple_of(kind, integer(r.seq), integer(r.thread), interned.stream(r.stream), source_tuple(r.source));
    case RecordKind::Wait:
      return tuple_of(kind, integer(r.seq), integer(r.thread), interned.stream(r.stream), integer(r.reference),
                      source_tuple(r.source));
    case RecordKind::SyncStream:
      return tuple_of(kind, integer(r.seq), integer(r.thread), interned.stream(r.stream), interned.name(r.name),
                      source_tuple(r.source));
    case RecordKind::SyncEvent:
      return tuple_of(kind, integer(r.seq), integer(r.thread), integer(r.reference), source_tuple(r.source));
    case RecordKind::SyncDevice:
      return tuple_of(kind, integer(r.seq), integer(r.thread), integer(std::int32_t{r.stream.device}),
                      source_tuple(r.source));
    case RecordKind::Alloc:
      return tuple_of(kind, integer(r.seq), integer(r.thread), interned.stream(r.stream), integer(r.reference),
                      integer(r.first), source_tuple(r.source));
    case RecordKind::RecordStream:
    case RecordKind::Free:
    case RecordKind::Reuse:
      return tuple_of(kind, integer(r.seq), integer(r.thread), interned.stream(r.stream), integer(r.reference));
    case RecordKind::Ran:
      return tuple_of(kind, integer(r.seq), integer(r.reference), integer(r.first), integer(r.second));
    case RecordKind::Name:
      return tuple_of(kind, integer(r.seq), integer(r.thread), integer(r.reference),
                      PyUnicode_FromStringAndSize(r.name.data(), static_cast<Py_ssize_t>(r.name.size())));
    case RecordKind::Drop:
    case RecordKind::Release:
    case RecordKind::Acquire:
    case RecordKind::LeftOut:
      return tuple_of(kind, integer(r.seq), integer(r.thread), integer(r.reference));
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
  Interned& interned = Interned::instance();
  py::list out(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), record_tuple(records[i], interned));
  }
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
  m.def("note_steps", [](bool on) { Runtime::instance().note_steps(on); });
  m.def("take_steps", [] {
    py::list out;
    for (const Step& step : Runtime::instance().take_steps()) {
      out.append(py::make_tuple(step.seq, step.id.number, step.id.own, step.id.end, py::make_tuple(step.stream.device, step.stream.id)));
    }
    return out;
  });
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

  m.def("trace_enable", [](bool on) {
    const auto guard = Runtime::instance().lock();
    Runtime::instance().trace().enable(on);
  }, NoGil());
  m.def("trace_sources", &set_capture_sources);
  m.def("trace_brief", [](bool on) { Runtime::instance().trace().set_brief(on); });
  m.def("trace_take", &take_trace);
  m.def("trace_sink", [](const py::object& sink, std::size_t records) {
    set_trace_sink(sink.is_none() ? nullptr : sink.ptr(), records);
  });
  m.def("host_thread", &host_thread_index);
  m.def("trace_release", [](std::uint64_t token, std::int32_t thread) { Runtime::instance().release_to(token, thread); }, NoGil());
  m.def("trace_acquire", [](std::uint64_t token) { Runtime::instance().acquire_from(token); }, NoGil());
  m.def("trace_backward", [](const py::object& callable) { set_backward_hook(callable.is_none() ? nullptr : callable.ptr()); });
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
