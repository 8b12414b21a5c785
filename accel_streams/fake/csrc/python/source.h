// Where the host submits operations, for reports.
#pragma once

#include <Python.h>

#include <string>

#include "../core/types.h"

namespace accel_streams::fake {

// New reference to the tuple (file, line, function) of a source, or None. Needs the GIL.
PyObject* source_tuple(SourceId source);
std::string describe_source(SourceId source);

// Called, with the GIL and no lock held, when a host thread begins to work for another backward pass, or for none.
void set_backward_hook(PyObject* callable);

// Called from capture_source, with the GIL and no lock held, when `records` have gathered in the trace.
void set_trace_sink(PyObject* callable, std::size_t records);

}  // namespace accel_streams::fake
