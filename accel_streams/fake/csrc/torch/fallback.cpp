// Every operator without a kernel of its own: queue torch's CPU kernel over the device's memory.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <cstring>
#include <memory>

#include "arguments.h"
#include "glue.h"
#include "inference.h"
#include "operation.h"

namespace accel_streams::fake {
namespace {

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

void copy_result(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_same(from) || to.numel() == 0) return;
  if (to.strides() == from.strides() && to.is_non_overlapping_and_dense() && to.dtype() == from.dtype()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.numel() * to.element_size());
    return;
  }
  to.copy_(from);
}

// One queued call of an operator: its CPU arguments, and where its new results go.
struct QueuedCall {
  c10::OperatorHandle op;
  c10::Stack arguments;
  std::vector<std::vector<at::Tensor>> results;  // by return; CPU aliases of device memory
  bool random = false;
  int generator = -1;
  std::uint64_t seed = 0;

  c10::Stack call() {
    const PlainCpuScope plain;
    c10::Stack stack = std::move(arguments);
    if (random && generator >= 0) {
      stack[static_cast<std::size_t>(generator)] = at::detail::createCPUGenerator(seed);
      op.callBoxed(&stack);
    } else if (random) {
      with_seeded_cpu_generator(seed, [&] { op.callBoxed(&stack); });
    } else {
      op.callBoxed(&stack);
    }
    return stack;
  }

  // Throws when a kernel has resized what it was given: the device's tensor would not have followed.
  static void check_sizes(const std::vector<at::Tensor>& written, const std::vector<std::vector<std::int64_t>>& sizes) {
    for (std::size_t i = 0; i < written.size(); ++i) {
      TORCH_CHECK_NOT_IMPLEMENTED(written[i].sizes() == c10::IntArrayRef(sizes[i]), "the size of an out= tensor depends on data (",
                                  sizes[i], " was given, ", written[i].sizes(),
                                  " is needed): give one of the right size, or none");
    }
  }

  void run(const OperationInfo& info) {
    std::vector<at::Tensor> written;
    std::vector<std::vector<std::int64_t>> sizes;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!info.arguments[i].out) continue;
      for (at::Tensor& tensor : tensors_in(arguments[i])) {
        sizes.push_back(tensor.sizes().vec());
        written.push_back(std::move(tensor));
      }
    }
    const c10::Stack returned = call();
    check_sizes(written, sizes);
    const PlainCpuScope plain;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].empty()) continue;
      const std::vector<at::Tensor> values = tensors_in(returned[i]);
      for (std::size_t j = 0; j < results[i].size(); ++j) {
        if (results[i][j].defined()) copy_result(results[i][j], values[j]);
      }
    }
  }
};

// The seed is drawn when the operation is queued, or dropout would depend on the schedule.
std::uint64_t draw_seed(const OperationInfo& info, c10::ArrayRef<c10::IValue> arguments, int device) {
  at::Generator generator = default_generator(device);
  if (info.generator >= 0) {
    const c10::IValue& given = arguments[static_cast<std::size_t>(info.generator)];
    if (!given.isNone()) generator = given.toGenerator();
  }
  TORCH_CHECK(generator.device().type() == kFake, info.name, ": expected a generator of the fake device, got one of ",
              generator.device(), "; make it with torch.Generator(device='fake')");
  const std::lock_guard<std::mutex> guard(generator.mutex());
  return static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl())->random64();
}

void resize_outs(const OperationInfo& info, c10::ArrayRef<c10::IValue> arguments, const ResultShapes& shapes,
                 bool& changed) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!info.arguments[i].out) continue;
    const std::vector<at::Tensor> given = tensors_in(arguments[i]);
    for (std::size_t j = 0; j < given.size(); ++j) {
      if (given[j].sizes() == c10::IntArrayRef(shapes.outs[i][j].sizes)) continue;
      given[j].resize_(shapes.outs[i][j].sizes);
      changed = true;
    }
  }
}

c10::IValue as_return(const ReturnInfo& info, std::vector<at::Tensor> tensors) {
  if (info.tensor_list) return c10::IValue(std::move(tensors));
  return c10::IValue(std::move(tensors.front()));
}

// Views touch no data: ask the CPU kernel for the geometry now.
void run_view(const c10::OperatorHandle& op, const OperationInfo& info, c10::Stack* stack) {
  const std::size_t count = info.arguments.size();
  const c10::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const CpuArguments cpu = to_cpu(info, arguments);
  at::Tensor base;
  for (const c10::IValue& value : arguments) {
    if (!base.defined() && value.isTensor()) base = value.toTensor();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(base.defined(), info.name, " has no tensor to be a view of");
  c10::Stack values = cpu.values;
  {
    const PlainCpuScope plain;
    op.callBoxed(&values);
  }
  stack->resize(stack->size() - count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<at::Tensor> views;
    for (const at::Tensor& geometry : tensors_in(values[i])) {
      auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                       base.key_set(), geometry.dtype());
      impl->set_sizes_and_strides(geometry.sizes(), geometry.strides(), geometry.storage_offset());
      views.emplace_back(std::move(impl));
    }
    stack->push_back(as_return(info.returns[i], std::move(views)));
  }
}

// Operators whose results the host needs at once: a number, or a shape that depends on data.
void run_and_wait(const c10::OperatorHandle& op, const OperationInfo& info, c10::Stack* stack) {
  const std::size_t count = info.arguments.size();
  const c10::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  CpuArguments cpu = to_cpu(info, arguments);
  auto call = std::make_shared<QueuedCall>(QueuedCall{op, std::move(cpu.values), {}, info.random, info.generator, 0});
  if (info.random) call->seed = draw_seed(info, arguments, cpu.device);
  auto returned = std::make_shared<c10::Stack>();
  enqueue_and_wait(cpu.device, info.name, std::move(cpu.accesses), [call, returned] { *returned = call->call(); });

  stack->resize(stack->size() - count);
  for (std::size_t i = 0; i < returned->size(); ++i) {
    const ReturnInfo& result = info.returns[i];
    if (result.argument >= 0) {
      stack->push_back(arguments[static_cast<std::size_t>(result.argument)]);
      continue;
    }
    if (!result.tensor && !result.tensor_list) {
      stack->push_back((*returned)[i]);
      continue;
    }
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& value : tensors_in((*returned)[i])) {
      if (!value.defined()) {
        outputs.emplace_back();
        continue;
      }
      at::Tensor output = empty_on_device(value.sizes(), value.strides(), value.scalar_type());
      std::vector<Access> written;
      add_access(written, output, Mode::Write);
      enqueue(cpu.device, info.name, std::move(written), [to = alias_on_cpu(output), value] {
        const PlainCpuScope plain;
        copy_result(to, value);
      });
      outputs.push_back(std::move(output));
    }
    stack->push_back(as_return(result, std::move(outputs)));
  }
}

void run_queued(const c10::OperatorHandle& op, const OperationInfo& info, c10::Stack* stack, CpuArguments cpu,
                std::shared_ptr<const ResultShapes> shapes) {
  const std::size_t count = info.arguments.size();
  const c10::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (shapes != nullptr && info.any_out) {
    bool changed = false;
    resize_outs(info, arguments, *shapes, changed);
    if (changed) cpu = to_cpu(info, arguments);
  }
  auto call = std::make_shared<QueuedCall>(QueuedCall{op, std::move(cpu.values), {}, info.random, info.generator, 0});
  if (info.random) call->seed = draw_seed(info, arguments, cpu.device);

  stack->resize(stack->size() - count);
  call->results.resize(info.returns.size());
  for (std::size_t i = 0; i < info.returns.size(); ++i) {
    const ReturnInfo& result = info.returns[i];
    if (result.argument >= 0) {
      stack->push_back(arguments[static_cast<std::size_t>(result.argument)]);
      continue;
    }
    std::vector<at::Tensor> outputs;
    for (const TensorShape& shape : shapes->returns[i]) {
      if (!shape.defined) {
        outputs.emplace_back();
        call->results[i].emplace_back();
        continue;
      }
      outputs.push_back(empty_on_device(shape.sizes, shape.strides, shape.dtype));
      call->results[i].push_back(alias_on_cpu(outputs.back()));
      add_access(cpu.accesses, outputs.back(), Mode::Write);
    }
    stack->push_back(as_return(result, std::move(outputs)));
  }
  enqueue(cpu.device, info.name, std::move(cpu.accesses), [call, &info] { call->run(info); });
}

void run_operator(const c10::OperatorHandle& op, c10::Stack* stack) {
  const OperationInfo& info = info_of(op);
  const SourceScope one_place;
  TORCH_CHECK_NOT_IMPLEMENTED(info.runs_on_cpu, "the fake device runs operators with torch's CPU kernels, and ", info.name,
                              " has none: move this part of the program to the CPU with .to('cpu'), or write it with "
                              "other operators");
  if (info.view) return run_view(op, info, stack);
  if (info.host_result || (info.dynamic_shape && !info.is_index)) return run_and_wait(op, info, stack);
  const std::size_t count = info.arguments.size();
  const auto arguments = c10::ArrayRef<c10::IValue>(stack->data() + (stack->size() - count), count);
  CpuArguments cpu = to_cpu(info, arguments);
  if (cpu.mask_index && !info.all_returns_written) return run_and_wait(op, info, stack);
  std::shared_ptr<const ResultShapes> shapes;
  // With a mask, torch has counted its true elements and given the result its size already.
  if ((info.any_out && !cpu.mask_index) || !info.all_returns_written) {
    shapes = infer(op, info, cpu.values);
    // The kernel refuses made-up data. Let it run on the real data, and let the host wait: slow, right, counted.
    if (shapes == nullptr) return run_and_wait(op, info, stack);
  }
  run_queued(op, info, stack, std::move(cpu), std::move(shapes));
}

void fallback(const c10::OperatorHandle& op, c10::Stack* stack) { run_operator(op, stack); }

// torch routes convolutions of devices from outside to operators that only they have.
void convolution(const c10::OperatorHandle&, c10::Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  run_operator(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, c10::Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  // (gradient, input, weight, stride, ...) becomes (gradient, input, weight, bias sizes, stride, ...).
  constexpr std::ptrdiff_t kArguments = 10;
  constexpr std::ptrdiff_t kBiasSizes = 3;
  const auto arguments = stack->end() - kArguments;
  const at::Tensor gradient = arguments->toTensor();
  const bool transposed = (arguments + 6)->toBool();
  const auto groups = (arguments + 8)->toInt();
  const at::Tensor weight = (arguments + 2)->toTensor();
  const std::int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(arguments + kBiasSizes, c10::IValue(std::vector<std::int64_t>{channels}));
  run_operator(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// Collectives and other operators that are not aten's need one for autograd's key too. Newer torch has it.
const torch::Library* const kAutogradFallback = []() -> const torch::Library* {
  constexpr c10::DispatchKey key = c10::DispatchKey::AutogradPrivateUse1;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) return nullptr;
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(torch::autograd::basicAutogradNotImplementedFallback());
  return library.release();  // leaked: its end would take the fallback away
}();

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // torch would decompose these for a device from outside; the CPU's own kernels are one operation each.
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace accel_streams::fake
