#include "source.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../torch/glue.h"

namespace accel_streams::fake {
namespace {

struct Owned {  // one owned reference
  explicit Owned(PyObject* object) : object(object) {}
  Owned(Owned&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object, other.object);
    return *this;
  }
  ~Owned() { Py_XDECREF(object); }
  PyObject* object;
};

struct GilScope {
  GilScope() : state(PyGILState_Ensure()) {}
  ~GilScope() { PyGILState_Release(state); }
  GilScope(const GilScope&) = delete;
  GilScope& operator=(const GilScope&) = delete;
  PyGILState_STATE state;
};

struct PlaceHash {
  std::size_t operator()(const std::pair<const void*, int>& place) const {
    return std::hash<const void*>()(place.first) * 31U + static_cast<std::size_t>(place.second);
  }
};

// Everything below is guarded by the GIL and leaked: threads may ask during the interpreter's end.
struct Table {
  std::unordered_map<const void*, bool> is_torch;                    // by code object
  std::unordered_map<std::pair<const void*, int>, SourceId, PlaceHash> by_instruction;  // of a code object
  std::unordered_map<std::pair<const void*, int>, SourceId, PlaceHash> by_place;        // code object and line
  std::unordered_map<std::string, SourceId> by_node;
  std::vector<PyObject*> tuples;
  std::vector<PyObject*> kept_code;
  PyObject* sink = nullptr;
  PyObject* backward_hook = nullptr;
};

Table& table() {
  static Table* const instance = new Table();
  return *instance;
}

std::atomic<bool> g_capture{false};
std::atomic<std::size_t> g_sink_threshold{0};
std::atomic<bool> g_backward_hook{false};
thread_local bool t_in_sink = false;
// Of the backward pass that the thread works for; -1 outside of any.
thread_local int t_graph_task = -1;
// Inside a SourceScope: the place, once it is known.
thread_local bool t_in_scope = false;
thread_local std::optional<SourceId> t_place;

SourceId add(PyObject* tuple) {
  table().tuples.push_back(tuple);
  return static_cast<SourceId>(table().tuples.size() - 1);
}

bool belongs_to_torch(PyCodeObject* code) {
  auto& known = table().is_torch;
  const auto found = known.find(code);
  if (found != known.end()) return found->second;
  const char* const text = PyUnicode_AsUTF8(code->co_filename);
  const std::string file = text == nullptr ? "" : text;
  if (text == nullptr) PyErr_Clear();
  const bool inside = file.find("/torch/") != std::string::npos || file.find("/accel_streams/fake/") != std::string::npos ||
                      file.rfind("<", 0) == 0;
  Py_INCREF(code);  // so that its address is not used again
  table().kept_code.push_back(reinterpret_cast<PyObject*>(code));
  known.emplace(code, inside);
  return inside;
}

// What tells the places in a function apart. Python searches for the line number, which takes long.
int instruction(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return PyFrame_GetLineNumber(frame);
#endif
}

SourceId python_place() {
  PyFrameObject* const top = PyEval_GetFrame();  // borrowed
  if (top == nullptr) return kNoSource;
  Py_INCREF(top);
  Owned frame(reinterpret_cast<PyObject*>(top));
  while (frame.object != nullptr) {
    auto* const current = reinterpret_cast<PyFrameObject*>(frame.object);
    PyCodeObject* const code = PyFrame_GetCode(current);
    const Owned code_owner(reinterpret_cast<PyObject*>(code));
    if (!belongs_to_torch(code)) {
      const auto here = std::make_pair(static_cast<const void*>(code), instruction(current));
      const auto seen = table().by_instruction.find(here);
      if (seen != table().by_instruction.end()) return seen->second;
      const int line = PyFrame_GetLineNumber(current);
      const auto key = std::make_pair(static_cast<const void*>(code), line);
      const auto found = table().by_place.find(key);
      if (found != table().by_place.end()) return table().by_instruction[here] = found->second;
      PyObject* const tuple = Py_BuildValue("(OiO)", code->co_filename, line, code->co_name);
      if (tuple == nullptr) {
        PyErr_Clear();
        return kNoSource;
      }
      return table().by_instruction[here] = table().by_place[key] = add(tuple);
    }
    frame = Owned(reinterpret_cast<PyObject*>(PyFrame_GetBack(current)));
  }
  return kNoSource;
}

SourceId autograd_place() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return kNoSource;
  const std::string name = node->name();
  const auto found = table().by_node.find(name);
  if (found != table().by_node.end()) return found->second;
  PyObject* const tuple = Py_BuildValue("(sis)", "autograd", 0, name.c_str());
  if (tuple == nullptr) {
    PyErr_Clear();
    return kNoSource;
  }
  return table().by_node[name] = add(tuple);
}

void feed_sink() {
  const std::size_t threshold = g_sink_threshold.load(std::memory_order_relaxed);
  if (threshold == 0 || t_in_sink || Runtime::instance().trace().size() < threshold) return;
  PyObject* const sink = table().sink;
  if (sink == nullptr) return;
  t_in_sink = true;
  const Owned result(PyObject_CallNoArgs(sink));
  t_in_sink = false;
  if (result.object == nullptr) PyErr_WriteUnraisable(sink);
}

// The engine's threads take over what the thread knows that called backward, and hand back what they know.
void note_graph_task() {
  if (!g_backward_hook.load(std::memory_order_relaxed)) return;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == t_graph_task) return;
  t_graph_task = task;
  const GilScope gil;
  PyObject* const hook = table().backward_hook;
  if (hook == nullptr) return;
  const Owned result(PyObject_CallNoArgs(hook));
  if (result.object == nullptr) PyErr_WriteUnraisable(hook);
}

}  // namespace

void set_capture_sources(bool on) { g_capture.store(on); }

SourceId capture_source() {
  if (!Runtime::instance().trace().enabled() || !Py_IsInitialized()) return kNoSource;
  note_graph_task();
  if (!g_capture.load(std::memory_order_relaxed) && g_sink_threshold.load(std::memory_order_relaxed) == 0) {
    return kNoSource;
  }
  if (t_place) return *t_place;
  const GilScope gil;
  feed_sink();
  if (!g_capture.load(std::memory_order_relaxed)) return kNoSource;
  SourceId place = python_place();
  if (place == kNoSource) place = autograd_place();
  if (t_in_scope) t_place = place;
  return place;
}

SourceScope::SourceScope() : outermost_(!std::exchange(t_in_scope, true)) {}

SourceScope::~SourceScope() {
  if (!outermost_) return;
  t_in_scope = false;
  t_place.reset();
}

PyObject* source_tuple(SourceId source) {
  PyObject* const tuple = source == kNoSource ? Py_None : table().tuples[static_cast<std::size_t>(source)];
  Py_INCREF(tuple);
  return tuple;
}

std::string describe_source(SourceId source) {
  const GilScope gil;
  const Owned tuple(source_tuple(source));
  if (tuple.object == Py_None) return "an unknown place";
  const char* const file = PyUnicode_AsUTF8(PyTuple_GetItem(tuple.object, 0));
  const long line = PyLong_AsLong(PyTuple_GetItem(tuple.object, 1));
  return std::string(file == nullptr ? "?" : file) + ":" + std::to_string(line);
}

void set_backward_hook(PyObject* callable) {
  Py_XINCREF(callable);
  const Owned previous(std::exchange(table().backward_hook, callable));
  g_backward_hook.store(callable != nullptr);
}

void set_trace_sink(PyObject* callable, std::size_t records) {
  Py_XINCREF(callable);
  const Owned previous(std::exchange(table().sink, callable));
  g_sink_threshold.store(callable == nullptr ? 0 : records);
}

}  // namespace accel_streams::fake
