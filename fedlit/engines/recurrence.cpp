// The steps of a recurrent layer, one after the other: h_t from h_{t-1}, and back. Products with the input, and those
// that give the gradients of weights, are left to torch: they need no loop. The weights are packed once for all steps.
// One thread: the engine's workers call it side by side. `recurrence.py` declares the operators and what tensors hold.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using torch::stable::Tensor;

#if defined(__AVX512F__)
constexpr int64_t BYTES = 64;
#else
constexpr int64_t BYTES = 32;
#endif
enum Kind : int64_t { LSTM, GRU, TANH, RELU };

template <typename T>
struct Simd {
  typedef T Vec __attribute__((vector_size(BYTES), aligned(alignof(T)), may_alias));
  static constexpr int64_t lanes = BYTES / sizeof(T);
};

// Calls body(size, first) for tiles of nearly equal sizes, each at most `most` and known when this is compiled.
template <int most, typename Body>
void in_tiles(int64_t count, const Body& body) {
  const int64_t tiles = (count + most - 1) / most;
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t first = count * tile / tiles, size = count * (tile + 1) / tiles - first;
    [&]<int... sizes>(std::integer_sequence<int, sizes...>) {
      ((size == sizes + 1 ? body(std::integral_constant<int, sizes + 1>(), first) : void()), ...);
    }(std::make_integer_sequence<int, most>());
  }
}

// ---- products ------------------------------------------------------------------------------------------------------

// A matrix (inner, columns) in panels of two vectors of columns, each panel in the order in which a product reads it.
template <typename T>
struct Panels {
  static constexpr int64_t width = 2 * Simd<T>::lanes;
  int64_t inner, columns, count;
  std::vector<T> values;

  template <typename At>
  Panels(int64_t inner, int64_t columns, const At& at)
      : inner(inner), columns(columns), count((columns + width - 1) / width), values(count * inner * width, T(0)) {
    for (int64_t p = 0; p < count; p++)
      for (int64_t k = 0; k < inner; k++)
        for (int64_t n = p * width; n < std::min(columns, (p + 1) * width); n++)
          values[(p * inner + k) * width + n - p * width] = at(k, n);
  }
  int64_t padded() const { return count * width; }

  // out (rows, padded) = a (rows, inner; rows lie `step` apart) times the matrix
  void times(const T* a, int64_t step, int64_t rows, T* out) const {
    using Vec = typename Simd<T>::Vec;
    for (int64_t p = 0; p < count; p++)
      in_tiles<6>(rows, [&](auto size, int64_t first) {
        Vec sums[size][2];
        for (int r = 0; r < size; r++) sums[r][0] = sums[r][1] = Vec{};
        const T* panel = values.data() + p * inner * width;
        for (int64_t k = 0; k < inner; k++, panel += width) {
          const Vec left = *reinterpret_cast<const Vec*>(panel);
          const Vec right = *reinterpret_cast<const Vec*>(panel + Simd<T>::lanes);
          for (int r = 0; r < size; r++) {
            const T number = a[(first + r) * step + k];
            sums[r][0] += left * number;
            sums[r][1] += right * number;
          }
        }
        for (int r = 0; r < size; r++)
          for (int half = 0; half < 2; half++)
            *reinterpret_cast<Vec*>(out + (first + r) * padded() + p * width + half * Simd<T>::lanes) = sums[r][half];
      });
  }
};

// ---- functions -----------------------------------------------------------------------------------------------------

// e^x to rounding, without a branch, so that loops over it become vectors: 2^n times a polynomial on [-ln2/2, ln2/2].
template <typename T>
inline T exponential(T x) {
  constexpr bool is_double = sizeof(T) == 8;
  using Int = std::conditional_t<is_double, int64_t, int32_t>;
  constexpr T most = is_double ? T(708) : T(87);
  x = x < -most ? -most : x;
  x = x > most ? most : x;
  constexpr T shift = is_double ? T(6755399441055744.0) : T(12582912.0); // adding it rounds to a whole number
  const T moved = x * T(1.4426950408889634) + shift, n = moved - shift;
  constexpr T high = is_double ? T(0.693147180369123816490) : T(0.693359375);
  constexpr T low = is_double ? T(1.90821492927058770002e-10) : T(-2.12194440e-4);
  const T r = (x - n * high) - n * low;
  T sum;
  if constexpr (is_double) {
    sum = T(1.0 / 6227020800.0);
    for (const double term : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                              1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
      sum = sum * r + T(term);
  } else {
    sum = T(1.0 / 5040);
    for (const double term : {1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) sum = sum * r + T(term);
  }
  constexpr int mantissa = is_double ? 52 : 23, bias = is_double ? 1023 : 127;
  const Int whole = std::bit_cast<Int>(moved) - std::bit_cast<Int>(shift);
  return sum * std::bit_cast<T>(Int((whole + bias) << mantissa));
}

template <typename T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

template <typename T>
inline T tangent(T x) {
  return T(2) / (T(1) + exponential(T(-2) * x)) - T(1);
}

// ---- a step of each kind, for one row ------------------------------------------------------------------------------

// In all of them x are the products with the input, p those with h_{t-1}; `out` are the row's numbers of this step.
// A loop has one function: with more, g++ makes no vectors of it.
template <typename T>
void sigmoids(const T* x, const T* p, int64_t count, T* __restrict__ out) {
  for (int64_t j = 0; j < count; j++) out[j] = sigmoid(x[j] + p[j]);
}

template <typename T>
void tangents(const T* x, const T* p, int64_t count, T* __restrict__ out) {
  for (int64_t j = 0; j < count; j++) out[j] = tangent(x[j] + p[j]);
}

template <typename T>
void lstm_step(const T* x, const T* p, const T* c, int64_t size, T* __restrict__ out) {
  sigmoids(x, p, 2 * size, out);
  tangents(x + 2 * size, p + 2 * size, size, out + 2 * size);
  sigmoids(x + 3 * size, p + 3 * size, size, out + 3 * size);
  for (int64_t j = 0; j < size; j++) {
    const T cell = out[size + j] * c[j] + out[j] * out[2 * size + j];
    out[4 * size + j] = cell;
    out[5 * size + j] = out[3 * size + j] * tangent(cell);
  }
}

template <typename T>
void gru_step(const T* x, const T* p, const T* h, const T* bias, int64_t size, T* __restrict__ out) {
  sigmoids(x, p, 2 * size, out);
  for (int64_t j = 0; j < size; j++) {
    const T update = out[size + j], hidden = p[2 * size + j] + bias[j];
    const T next = tangent(x[2 * size + j] + out[j] * hidden);
    out[2 * size + j] = next;
    out[3 * size + j] = hidden;
    out[4 * size + j] = (T(1) - update) * next + update * h[j];
  }
}

// Back: `slope` of h_t becomes what of it goes to h_{t-1} directly; `out` gets the slopes before the functions.
template <typename T>
void lstm_back(const T* s, const T* c, int64_t size, const T* slope, T* __restrict__ cell_slope, T* __restrict__ out) {
  for (int64_t j = 0; j < size; j++) {
    const T i = s[j], f = s[size + j], g = s[2 * size + j], o = s[3 * size + j], tanh_c = tangent(s[4 * size + j]);
    const T dc = cell_slope[j] + slope[j] * o * (T(1) - tanh_c * tanh_c);
    out[j] = dc * g * i * (T(1) - i);
    out[size + j] = dc * c[j] * f * (T(1) - f);
    out[2 * size + j] = dc * i * (T(1) - g * g);
    out[3 * size + j] = slope[j] * tanh_c * o * (T(1) - o);
    cell_slope[j] = dc * f;
  }
}

template <typename T>
void gru_back(const T* s, const T* h, int64_t size, T* __restrict__ slope, T* __restrict__ out) {
  for (int64_t j = 0; j < size; j++) {
    const T r = s[j], z = s[size + j], n = s[2 * size + j], q = s[3 * size + j], d = slope[j];
    const T dn = d * (T(1) - z) * (T(1) - n * n);
    out[j] = dn * q * r * (T(1) - r);
    out[size + j] = d * (h[j] - n) * z * (T(1) - z);
    out[2 * size + j] = dn * r; // of W h + b; that of x is kept beside it
    out[3 * size + j] = dn;
    slope[j] = d * z;
  }
}

// ---- the operators -------------------------------------------------------------------------------------------------

template <typename T>
const T* read(const Tensor& x) {
  return static_cast<const T*>(x.data_ptr());
}

template <typename T>
T* write(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

template <typename Body>
void by_type(const Tensor& x, const Body& body) {
  if (x.scalar_type() == torch::headeronly::ScalarType::Double) return body(double(0));
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "a recurrent layer takes float or double");
  body(float(0));
}

int64_t kept(int64_t kind) { return kind == LSTM ? 6 : kind == GRU ? 5 : 1; }   // vectors that a step keeps; h is the last
int64_t gates(int64_t kind) { return kind == LSTM ? 4 : kind == GRU ? 3 : 1; } // vectors of a product

Tensor recur(Tensor x, Tensor h0, Tensor c0, Tensor w, Tensor bias, int64_t kind) {
  const int64_t steps = x.size(0), rows = x.size(1), size = w.size(1), width = kept(kind) * size;
  Tensor result = torch::stable::new_empty(x, {steps, rows, width});
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* weights = read<T>(w);
    const Panels<T> panels(size, gates(kind) * size, [&](int64_t k, int64_t n) { return weights[n * size + k]; });
    std::vector<T> products(rows * panels.padded());
    for (int64_t t = 0; t < steps; t++) {
      T* out = write<T>(result) + t * rows * width;
      const T* before = out - rows * width; // of the step before
      const T* h = t == 0 ? read<T>(h0) : before + width - size;
      const T* c = t == 0 ? read<T>(c0) : before + 4 * size;
      const int64_t step = t == 0 ? size : width;
      panels.times(h, step, rows, products.data());
      for (int64_t b = 0; b < rows; b++) {
        const T* in = read<T>(x) + (t * rows + b) * gates(kind) * size;
        const T* p = products.data() + b * panels.padded();
        T* __restrict__ to = out + b * width;
        if (kind == LSTM) lstm_step(in, p, c + b * step, size, to);
        if (kind == GRU) gru_step(in, p, h + b * step, read<T>(bias), size, to);
        if (kind == TANH) tangents(in, p, size, to);
        if (kind == RELU) for (int64_t j = 0; j < size; j++) to[j] = in[j] + p[j] < T(0) ? T(0) : in[j] + p[j];
      }
    }
  });
  return result;
}

Tensor recur_back(Tensor slope, Tensor cell_slope, Tensor states, Tensor h0, Tensor c0, Tensor w, int64_t kind) {
  const int64_t steps = states.size(0), rows = states.size(1), size = w.size(1), width = kept(kind) * size;
  const int64_t out_width = (kind == GRU ? 4 : gates(kind)) * size;
  Tensor result = torch::stable::new_empty(states, {steps + 1, rows, kind == TANH || kind == RELU ? size : 4 * size});
  by_type(states, [&](auto zero) {
    using T = decltype(zero);
    const T* weights = read<T>(w);
    const Panels<T> panels(gates(kind) * size, size, [&](int64_t k, int64_t n) { return weights[k * size + n]; });
    std::vector<T> to_h(rows * size, T(0)), products(rows * panels.padded());
    std::vector<T> to_c(read<T>(cell_slope), read<T>(cell_slope) + rows * size);
    for (int64_t t = steps - 1; t >= 0; t--) {
      const T* s = read<T>(states) + t * rows * width;
      const T* before = s - rows * width;
      const T* h = t == 0 ? read<T>(h0) : before + width - size;
      const T* c = t == 0 ? read<T>(c0) : before + 4 * size;
      const int64_t step = t == 0 ? size : width;
      T* out = write<T>(result) + t * rows * out_width;
      for (int64_t b = 0; b < rows; b++) {
        T* own = to_h.data() + b * size;
        const T* given = read<T>(slope) + (t * rows + b) * size;
        for (int64_t j = 0; j < size; j++) own[j] += given[j];
        const T* row = s + b * width;
        T* __restrict__ to = out + b * out_width;
        if (kind == LSTM) {
          lstm_back(row, c + b * step, size, own, to_c.data() + b * size, to);
          std::fill_n(own, size, T(0));
        } else if (kind == GRU) {
          gru_back(row, h + b * step, size, own, to);
        } else {
          for (int64_t j = 0; j < size; j++) {
            to[j] = kind == TANH ? own[j] * (T(1) - row[j] * row[j]) : row[j] > T(0) ? own[j] : T(0);
            own[j] = T(0);
          }
        }
      }
      panels.times(out, out_width, rows, products.data());
      for (int64_t b = 0; b < rows; b++)
        for (int64_t j = 0; j < size; j++) to_h[b * size + j] += products[b * panels.padded() + j];
    }
    T* last = write<T>(result) + steps * rows * out_width; // the slopes of h_0, and of c_0 beside it
    for (int64_t b = 0; b < rows; b++) {
      std::copy_n(to_h.data() + b * size, size, last + b * out_width);
      if (out_width > size) {
        std::copy_n(to_c.data() + b * size, size, last + b * out_width + size);
        std::fill_n(last + b * out_width + 2 * size, 2 * size, T(0));
      }
    }
  });
  return result;
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(fedlit, CPU, library) {
  library.impl("recur", TORCH_BOX(&recur));
  library.impl("recur_back", TORCH_BOX(&recur_back));
}
