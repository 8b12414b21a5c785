#include "arguments.h"

#include <ATen/core/List.h>
#include <ATen/ops/clone.h>

#include <cstring>

namespace accel_streams::fake {
namespace {

bool is_optional_tensor_list(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto element = value.toList().elementType();
  return element->kind() == c10::TypeKind::OptionalType;
}

void mix_in(Signature& out, std::int64_t value) { out.push_back(value); }

void mix_in(Signature& out, double value) {
  std::int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  out.push_back(bits);
}

void mix_in(Signature& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    mix_in(out, std::int64_t{-1});
    return;
  }
  const auto* const impl = tensor.unsafeGetTensorImpl();
  mix_in(out, (static_cast<std::int64_t>(tensor.scalar_type()) << 8) | (tensor.dim() << 2) |
                  (impl->is_wrapped_number() ? 1 : 0) | (tensor.is_conj() || tensor.is_neg() ? 2 : 0));
  for (const auto size : tensor.sizes()) mix_in(out, size);
  for (const auto stride : tensor.strides()) mix_in(out, stride);
}

void mix_in(Signature& out, const c10::IValue& value) {
  mix_in(out, static_cast<std::int64_t>(value.isNone() ? 0 : 1));
  if (value.isNone()) return;
  if (value.isTensor()) return mix_in(out, value.toTensor());
  if (value.isInt()) return mix_in(out, value.toInt());
  if (value.isBool()) return mix_in(out, static_cast<std::int64_t>(value.toBool()));
  if (value.isDouble()) return mix_in(out, value.toDouble());
  if (value.isComplexDouble()) {
    mix_in(out, value.toComplexDouble().real());
    return mix_in(out, value.toComplexDouble().imag());
  }
  if (value.isString()) {
    const std::string& text = value.toStringRef();
    mix_in(out, static_cast<std::int64_t>(text.size()));
    for (const char c : text) mix_in(out, static_cast<std::int64_t>(c));
    return;
  }
  if (value.isList()) {
    const auto list = value.toListRef();
    mix_in(out, static_cast<std::int64_t>(list.size()));
    for (const c10::IValue& element : list) mix_in(out, element);
    return;
  }
  // Devices, generators and storages: no shape depends on which one it is.
}

}  // namespace

c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(change(tensor));
    return out;
  }
  if (is_optional_tensor_list(value)) {
    c10::List<std::optional<at::Tensor>> out;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isNone()) {
        out.push_back(std::nullopt);
      } else {
        out.push_back(change(element.toTensor()));
      }
    }
    return out;
  }
  return value;
}

CpuArguments to_cpu(const OperationInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  CpuArguments out;
  out.values.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    const ArgumentInfo& argument = info.arguments[i];
    if (value.isDevice()) {
      const c10::Device device = value.toDevice();
      if (device.type() == kFake && out.device < 0) out.device = device.has_index() ? device.index() : current_device();
      out.values.emplace_back(device.type() == kFake ? c10::Device(c10::DeviceType::CPU) : device);
      continue;
    }
    out.values.push_back(map_tensors(value, [&](const at::Tensor& tensor) -> at::Tensor {
      if (!tensor.defined()) return tensor;
      if (tensor.device().type() == kFake) {
        const int device = tensor.device().index();
        TORCH_CHECK(out.device < 0 || out.device == device, info.name, ": expected all tensors on one device, got fake:",
                    out.device, " and fake:", device, "; move one of them with .to()");
        out.device = device;
        add_access(out.accesses, tensor,
                   argument.out ? Mode::Write : (argument.written ? Mode::ReadWrite : Mode::Read));
        const bool mask = tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
        if (info.is_index && i == 1 && mask) out.mask_index = true;
        return alias_on_cpu(tensor);
      }
      TORCH_CHECK(tensor.device().is_cpu(), info.name, ": the fake device can't use a tensor on ", tensor.device());
      TORCH_CHECK((tensor.dim() == 0 || info.is_index) && !argument.written, info.name,
                  ": expected all tensors on the fake device, got one of shape ", tensor.sizes(),
                  " on the CPU; move it with .to('fake')");
      if (info.is_index && i == 1 && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte)) {
        out.mask_index = true;
      }
      // The host may change it before the operation runs.
      const PlainCpuScope plain;
      at::Tensor snapshot = tensor.clone();
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        snapshot.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      return snapshot;
    }));
  }
  if (out.device < 0) out.device = current_device();
  return out;
}

Signature signature_of(const OperationInfo& info, c10::ArrayRef<c10::IValue> values) {
  Signature out;
  out.reserve(8 * values.size() + 1);
  out.push_back(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&info)));
  for (const c10::IValue& value : values) mix_in(out, value);
  return out;
}

}  // namespace accel_streams::fake
