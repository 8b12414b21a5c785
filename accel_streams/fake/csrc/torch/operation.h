// What an operator's schema says about the way in which it has to be run on the device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace accel_streams::fake {

struct ArgumentInfo {
  bool written = false;  // mutated in place or given as out=
  bool out = false;
};

struct ReturnInfo {
  int argument = -1;    // the written argument that it is, or -1
  bool view = false;    // an alias of an input that is not written
  bool tensor = false;
  bool tensor_list = false;
};

struct OperationInfo {
  std::string name;  // with its overload
  std::vector<ArgumentInfo> arguments;
  std::vector<ReturnInfo> returns;
  bool any_out = false;
  bool all_returns_written = true;
  bool view = false;               // at least one return is a view
  bool host_result = false;        // a number or a flag that the host gets
  bool dynamic_shape = false;      // the output's shape depends on data
  bool random = false;
  bool runs_on_cpu = true;         // torch has a CPU kernel for it
  bool is_index = false;           // takes index tensors: dynamic when one of them is a mask
  int generator = -1;              // the argument that is the generator, or -1
};

// Computed once for each operator. The reference stays valid.
const OperationInfo& info_of(const c10::OperatorHandle& op);

}  // namespace accel_streams::fake
