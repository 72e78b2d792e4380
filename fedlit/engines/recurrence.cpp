// `recurrence.h` as operators of torch: `recurrence.py` declares them, and what their tensors hold.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "products.h"

#include "recurrence.h"

namespace {

using torch::stable::Tensor;

template <typename T>
T* at(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

template <typename Body>
void by_type(const Tensor& x, const Body& body) {
  if (x.scalar_type() == torch::headeronly::ScalarType::Double) return body(double(0));
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "a recurrent layer takes float or double");
  body(float(0));
}

Tensor recur(Tensor x, Tensor h0, Tensor c0, Tensor w, Tensor bias, int64_t kind) {
  const int64_t steps = x.size(0), rows = x.size(1), size = w.size(1);
  Tensor result = torch::stable::new_empty(x, {steps, rows, fedlit::kept(kind) * size});
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    fedlit::recur<T>(steps, rows, size, kind, at<T>(x), at<T>(h0), at<T>(c0), at<T>(w), at<T>(bias), at<T>(result));
  });
  return result;
}

Tensor recur_back(Tensor slope, Tensor cell_slope, Tensor states, Tensor h0, Tensor c0, Tensor w, int64_t kind) {
  const int64_t steps = states.size(0), rows = states.size(1), size = w.size(1);
  Tensor result = torch::stable::new_empty(states, {steps + 1, rows, fedlit::slopes(kind) * size});
  by_type(states, [&](auto zero) {
    using T = decltype(zero);
    fedlit::recur_back<T>(steps, rows, size, kind, at<T>(slope), at<T>(cell_slope), at<T>(states), at<T>(h0), at<T>(c0),
                          at<T>(w), at<T>(result));
  });
  return result;
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(fedlit, CPU, library) {
  library.impl("recur", TORCH_BOX(&recur));
  library.impl("recur_back", TORCH_BOX(&recur_back));
}
