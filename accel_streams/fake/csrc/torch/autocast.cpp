// torch.autocast on the fake device: which operators run in the lower precision, which in float32.
//
// Boxed, by name: one small function for each policy in place of hundreds of template instances.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <vector>

#include "arguments.h"
#include "glue.h"

namespace accel_streams::fake {
namespace {

enum class Policy { LowerPrecision, Float32, Widest };

bool eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kFake && tensor.is_floating_point() &&
         tensor.scalar_type() != at::kDouble;
}

c10::ScalarType widest(c10::ArrayRef<c10::IValue> arguments) {
  c10::ScalarType out = at::autocast::get_autocast_dtype(kFake);
  for (const c10::IValue& value : arguments) {
    map_tensors(value, [&out](const at::Tensor& tensor) {
      if (eligible(tensor) && tensor.scalar_type() == at::kFloat) out = at::kFloat;
      return tensor;
    });
  }
  return out;
}

template <Policy policy>
void cast_and_call(const c10::OperatorHandle& op, c10::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::size_t count = op.schema().arguments().size();
  const std::size_t first = stack->size() - count;
  c10::ScalarType to = at::kFloat;
  if (policy == Policy::LowerPrecision) to = at::autocast::get_autocast_dtype(kFake);
  if (policy == Policy::Widest) to = widest(c10::ArrayRef<c10::IValue>(stack->data() + first, count));
  for (std::size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = map_tensors((*stack)[i], [to](const at::Tensor& tensor) {
      return eligible(tensor) ? at::autocast::cached_cast(to, tensor, kFake) : tensor;
    });
  }
  op.callBoxed(stack);
}

// torch's lists (ATen/autocast_mode.h), by policy.
constexpr const char* kLowerPrecision[] = {
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"};

constexpr const char* kFloat32[] = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    // torch sets the result's type to float32 for these, which is the same as to cast what goes in.
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim"};

constexpr const char* kWidest[] = {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot",
                                   "grid_sampler", "index_put", "tensordot", "scatter_add", "cat", "stack"};

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const char* name : kLowerPrecision) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::LowerPrecision>>());
  }
  for (const char* name : kFloat32) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::Float32>>());
  }
  for (const char* name : kWidest) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::Widest>>());
  }
}

}  // namespace accel_streams::fake
