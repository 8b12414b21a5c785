// Shapes, strides and types of an operator's results, before it runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

#include "arguments.h"

namespace accel_streams::fake {

struct TensorShape {
  bool defined = false;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

struct ResultShapes {
  std::vector<std::vector<TensorShape>> returns;   // one entry a tensor, several for a list of tensors
  std::vector<std::vector<TensorShape>> outs;      // by argument: what an out= tensor was resized to
};

// Asks torch's CPU kernel itself, on tensors of the same shapes filled with zeros; the answer is kept. Meta
// kernels would be cheaper and are not always right: for bf16 they disagree with the CPU about the types that
// native_layer_norm returns. Null when the kernel can't be asked (it refuses such data).
std::shared_ptr<const ResultShapes> infer(const c10::OperatorHandle& op, const OperationInfo& info,
                                          const c10::Stack& cpu_arguments);

// Runs `body` with the CPU's default generator seeded with `seed`, and puts the generator back.
void with_seeded_cpu_generator(std::uint64_t seed, const std::function<void()>& body);

}  // namespace accel_streams::fake
