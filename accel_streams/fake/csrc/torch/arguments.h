// An operator's arguments on their way from the device to torch's CPU kernels.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "glue.h"
#include "operation.h"

namespace accel_streams::fake {

struct CpuArguments {
  c10::Stack values;             // the arguments, device tensors replaced by aliases of their memory
  std::vector<Access> accesses;
  int device = -1;               // of the device tensors; the current one when there are none
  bool mask_index = false;       // an index argument is a mask of booleans or bytes
};

// Throws when the tensors are on several devices, or a CPU tensor with dimensions is among them.
CpuArguments to_cpu(const OperationInfo& info, c10::ArrayRef<c10::IValue> arguments);

// Everything about the arguments that the shape of the results may depend on, in a form that can be compared.
using Signature = std::vector<std::int64_t>;
Signature signature_of(const OperationInfo& info, c10::ArrayRef<c10::IValue> values);

// Applies `change` to every tensor in `value`, through lists and optionals.
c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change);

}  // namespace accel_streams::fake
