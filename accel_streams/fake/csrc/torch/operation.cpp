#include "operation.h"

#include <ATen/core/enum_tag.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace accel_streams::fake {
namespace {

bool is_kind(const c10::TypePtr& type, c10::TypeKind kind) { return type->kind() == kind; }

bool is_tensor_list(const c10::TypePtr& type) {
  return is_kind(type, c10::TypeKind::ListType) &&
         is_kind(type->castRaw<c10::ListType>()->getElementType(), c10::TypeKind::TensorType);
}

std::unique_ptr<OperationInfo> describe(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto info = std::make_unique<OperationInfo>();
  info->name = schema.name();
  if (!schema.overload_name().empty()) info->name += "." + schema.overload_name();
  info->dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  info->runs_on_cpu = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  info->random = op.hasTag(at::Tag::nondeterministic_seeded);
  info->is_index = schema.name() == "aten::index" || schema.name() == "aten::index_put" ||
                   schema.name() == "aten::index_put_" || schema.name() == "aten::_index_put_impl_" ||
                   schema.name() == "aten::_unsafe_index" || schema.name() == "aten::_unsafe_index_put";

  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    ArgumentInfo entry;
    entry.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    entry.out = argument.is_out();
    info->any_out |= entry.out;
    const c10::TypePtr& type = argument.type();
    const bool optional_generator = is_kind(type, c10::TypeKind::OptionalType) &&
                                    is_kind(type->castRaw<c10::OptionalType>()->getElementType(), c10::TypeKind::GeneratorType);
    if (is_kind(type, c10::TypeKind::GeneratorType) || optional_generator) {
      info->generator = static_cast<int>(i);
      info->random = true;
    }
    info->arguments.push_back(entry);
  }
  for (const c10::Argument& result : schema.returns()) {
    ReturnInfo entry;
    entry.tensor = is_kind(result.type(), c10::TypeKind::TensorType);
    entry.tensor_list = is_tensor_list(result.type());
    info->host_result |= !entry.tensor && !entry.tensor_list;
    if (result.alias_info() != nullptr) {
      if (result.alias_info()->isWrite()) {
        for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
          const auto* alias = schema.arguments()[i].alias_info();
          if (alias != nullptr && alias->isWrite() && alias->beforeSets() == result.alias_info()->beforeSets()) {
            entry.argument = static_cast<int>(i);
          }
        }
      } else {
        entry.view = true;
        info->view = true;
      }
    }
    info->all_returns_written &= entry.argument >= 0;
    info->returns.push_back(entry);
  }
  return info;
}

}  // namespace

const OperationInfo& info_of(const c10::OperatorHandle& op) {
  // Leaked: engine threads run operators during static destruction.
  static auto* const known = new std::unordered_map<const void*, std::unique_ptr<OperationInfo>>();
  static auto* const mutex = new std::mutex();
  const void* const key = &op.schema();
  const std::lock_guard<std::mutex> guard(*mutex);
  auto& entry = (*known)[key];
  if (entry == nullptr) entry = describe(op);
  return *entry;
}

}  // namespace accel_streams::fake
