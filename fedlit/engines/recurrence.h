// The steps of a recurrent layer, one after the other: h_t from h_{t-1}, and back. Products with the input, and those
// that give the gradients of weights, are left to others: they need no loop. The weights are packed once for all steps.
// One thread: the engine's workers call it side by side. Part of compiled programs, and of `recurrence.cpp`.

#include <bit>
#include <cmath>
#include <type_traits>

#if defined(__GNUC__) && !defined(__clang__) // torch's compiler forbids g++ to make vectors of loops
#pragma GCC push_options
#pragma GCC optimize("tree-loop-vectorize")
#endif

namespace fedlit {
namespace {

enum Kind : int64_t { LSTM, GRU, TANH, RELU };

inline int64_t kept(int64_t kind) { return kind == LSTM ? 6 : kind == GRU ? 5 : 1; } // vectors that a step keeps; h is the last
inline int64_t gates(int64_t kind) { return kind == LSTM ? 4 : kind == GRU ? 3 : 1; } // vectors of a product
inline int64_t slopes(int64_t kind) { return kind == LSTM || kind == GRU ? 4 : 1; } // vectors that a step back writes

// A matrix that is multiplied again and again. Every second time it is read from its end: what was read last is nearest.
template <typename T>
struct Panels {
  static constexpr int64_t width = 2 * Simd<T>::lanes;
  int64_t inner, columns;
  std::vector<T>& values;
  bool is_turn = false;

  Panels(Matrix<T> b, int64_t inner, int64_t columns, std::vector<T>& room) : inner(inner), columns(columns), values(room) {
    values.resize((columns + width - 1) / width * width * inner);
    pack(b, inner, columns, width, values.data());
  }

  // out (rows, columns) = a (rows, inner) times the matrix, ended as `sum` says
  void times(Matrix<T> a, int64_t rows, Sum<T> sum, T* out) {
    const int64_t count = (columns + width - 1) / width;
    for (int64_t turn = 0; turn < count; turn++) {
      const int64_t panel = is_turn ? count - 1 - turn : turn, n = panel * width;
      in_tiles<TILE>(rows, [&](auto size, int64_t first) {
        tile_times<T, size, 2>(a.from(first, 0), values.data() + panel * inner * width, inner, sum.from(first, n),
                               out + first * columns + n, columns, std::min(width, columns - n));
      });
    }
    is_turn = !is_turn;
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

// ---- all steps -----------------------------------------------------------------------------------------------------

// x (steps, rows, gates * size): products with the input; out (steps, rows, kept * size)
template <typename T>
void recur(
    int64_t steps, int64_t rows, int64_t size, int64_t kind, const T* x, const T* h0, const T* c0, const T* w,
    const T* bias, T* out) {
  static thread_local std::vector<T> packed, products;
  const int64_t width = kept(kind) * size, across = gates(kind) * size;
  Panels<T> panels({w, 1, size}, size, across, packed);
  products.resize(rows * across);
  for (int64_t t = 0; t < steps; t++, out += rows * width) {
    const T* before = out - rows * width; // of the step before
    const T* h = t == 0 ? h0 : before + width - size;
    const T* c = t == 0 ? c0 : before + 4 * size;
    const int64_t step = t == 0 ? size : width;
    panels.times({h, step, 1}, rows, {nullptr, 0, T(1)}, products.data());
    for (int64_t b = 0; b < rows; b++, x += across) {
      const T* p = products.data() + b * across;
      T* __restrict__ to = out + b * width;
      if (kind == LSTM) lstm_step(x, p, c + b * step, size, to);
      if (kind == GRU) gru_step(x, p, h + b * step, bias, size, to);
      if (kind == TANH) tangents(x, p, size, to);
      if (kind == RELU) for (int64_t j = 0; j < size; j++) to[j] = x[j] + p[j] < T(0) ? T(0) : x[j] + p[j];
    }
  }
}

// slope (steps, rows, size) of h, cell_slope (rows, size) of the last c; out (steps + 1, rows, slopes * size), of which
// the last holds the slopes of h_0, and of c_0 beside it
template <typename T>
void recur_back(
    int64_t steps, int64_t rows, int64_t size, int64_t kind, const T* slope, const T* cell_slope, const T* states,
    const T* h0, const T* c0, const T* w, T* result) {
  static thread_local std::vector<T> packed, to_h, to_c;
  const int64_t width = kept(kind) * size, across = gates(kind) * size, out_width = slopes(kind) * size;
  Panels<T> panels({w, size, 1}, across, size, packed);
  to_h.assign(rows * size, T(0));
  to_c.assign(cell_slope, cell_slope + rows * size);
  for (int64_t t = steps - 1; t >= 0; t--) {
    const T* s = states + t * rows * width;
    const T* before = s - rows * width;
    const T* h = t == 0 ? h0 : before + width - size;
    const T* c = t == 0 ? c0 : before + 4 * size;
    const int64_t step = t == 0 ? size : width;
    T* out = result + t * rows * out_width;
    for (int64_t b = 0; b < rows; b++) {
      T* own = to_h.data() + b * size;
      const T* given = slope + (t * rows + b) * size;
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
    panels.times({out, out_width, 1}, rows, {to_h.data(), size, T(1)}, to_h.data());
  }
  T* last = result + steps * rows * out_width;
  for (int64_t b = 0; b < rows; b++) {
    std::copy_n(to_h.data() + b * size, size, last + b * out_width);
    if (out_width > size) {
      std::copy_n(to_c.data() + b * size, size, last + b * out_width + size);
      std::fill_n(last + b * out_width + 2 * size, 2 * size, T(0));
    }
  }
}

} // namespace
} // namespace fedlit

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
