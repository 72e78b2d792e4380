// Large products of matrices in one thread. Part of compiled programs (`inductor_loops.py`) and of `recurrence.cpp`.
//
// The second factor is packed in panels of two vectors of columns, which a tile of rows reads from start to end. A tile's
// sums stay in registers. MKL does the same, but takes half of the vector's width on processors that are not Intel's.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace fedlit {
namespace {

#if defined(__AVX512F__)
constexpr int64_t BYTES = 64;
constexpr int TILE = 12; // rows: with two vectors each, and two of the panel, they fill the registers
#else
constexpr int64_t BYTES = 32;
constexpr int TILE = 6;
#endif

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

// A matrix as it lies in memory: `row` and `column` are the distances from one to the next.
template <typename T>
struct Matrix {
  const T* at;
  int64_t row, column;
  Matrix from(int64_t rows, int64_t columns) const { return {at + rows * row + columns * column, row, column}; }
};

// What a product ends as: x + factor * product, or the product alone if there is no x.
template <typename T>
struct Sum {
  const T* x;
  int64_t step; // from a row of x to the next
  T factor;
  Sum from(int64_t rows, int64_t columns) const { return {x == nullptr ? x : x + rows * step + columns, step, factor}; }
};

// R rows of a times a panel of V vectors, of which `columns` numbers are real.
template <typename T, int R, int V>
__attribute__((noinline)) void tile_times(
    Matrix<T> a, const T* panel, int64_t inner, Sum<T> sum, T* out, int64_t step, int64_t columns) {
  using Vec = typename Simd<T>::Vec;
  constexpr int64_t lanes = Simd<T>::lanes, width = V * lanes;
  Vec sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = Vec{};
  for (int64_t k = 0; k < inner; k++) {
    Vec numbers[V];
    for (int v = 0; v < V; v++) numbers[v] = *reinterpret_cast<const Vec*>(panel + k * width + v * lanes);
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) sums[r][v] += numbers[v] * a.at[r * a.row + k * a.column];
  }
  for (int r = 0; r < R; r++, out += step) {
    const T* x = sum.x == nullptr ? nullptr : sum.x + r * sum.step;
    if (columns == width) {
      for (int v = 0; v < V; v++) {
        const Vec product = sums[r][v];
        Vec& to = *reinterpret_cast<Vec*>(out + v * lanes);
        to = x == nullptr ? product : *reinterpret_cast<const Vec*>(x + v * lanes) + product * sum.factor;
      }
    } else {
      T ends[width];
      std::memcpy(ends, sums[r], sizeof(ends));
      for (int64_t n = 0; n < columns; n++) out[n] = x == nullptr ? ends[n] : x[n] + sum.factor * ends[n];
    }
  }
}

// A matrix (inner, columns) in panels of `width` columns: each lies row after row, the last is filled up with zeros.
template <typename T>
void pack(Matrix<T> b, int64_t inner, int64_t columns, int64_t width, T* panels) {
  constexpr int64_t line = 64 / sizeof(T); // numbers of memory that are read at once
  for (int64_t first = 0; first < columns; first += width, panels += inner * width) {
    const int64_t own = std::min(width, columns - first);
    if (own < width) std::fill_n(panels, inner * width, T(0));
    const T* from = b.at + first * b.column;
    if (b.column == 1) {
      for (int64_t k = 0; k < inner; k++) std::memcpy(panels + k * width, from + k * b.row, own * sizeof(T));
    } else {
      for (int64_t begin = 0; begin < inner; begin += line)
        for (int64_t n = 0; n < own; n++)
          for (int64_t k = begin; k < std::min(begin + line, inner); k++)
            panels[k * width + n] = from[k * b.row + n * b.column];
    }
  }
}

// ---- a product of any size -----------------------------------------------------------------------------------------

constexpr int64_t DEPTH = 512, BREADTH = 512; // rows and columns of b that are packed at a time: they stay near a core

template <typename T>
struct Packed { // a thread keeps the memory from call to call
  std::vector<T> panels = std::vector<T>(DEPTH * BREADTH), rows = std::vector<T>(TILE * DEPTH);
};

// out (rows, columns) = a (rows, inner) b (inner, columns), ended as `sum` says; V vectors of columns at a time.
template <typename T, int V>
void product_by_panels(int64_t rows, int64_t columns, int64_t inner, Matrix<T> a, Matrix<T> b, Sum<T> sum, T* out) {
  constexpr int64_t width = V * Simd<T>::lanes;
  static thread_local Packed<T> packed;
  for (int64_t n0 = 0; n0 < columns; n0 += BREADTH) {
    const int64_t broad = std::min(BREADTH, columns - n0);
    Sum<T> end = sum.from(0, n0);
    for (int64_t k0 = 0; k0 < inner; k0 += DEPTH, end = {out + n0, columns, end.x == nullptr ? T(1) : sum.factor}) {
      const int64_t deep = std::min(DEPTH, inner - k0);
      pack(b.from(k0, n0), deep, broad, width, packed.panels.data());
      in_tiles<TILE>(rows, [&](auto size, int64_t first) {
        Matrix<T> tile = a.from(first, k0);
        if (a.column != 1) { // else every k would read lines of memory of its own
          T* to = packed.rows.data();
          for (int64_t k = 0; k < deep; k++, to += size)
            if (tile.row == 1)
              std::memcpy(to, tile.at + k * tile.column, size * sizeof(T));
            else
              for (int r = 0; r < size; r++) to[r] = tile.at[r * tile.row + k * tile.column];
          tile = {packed.rows.data(), 1, size};
        }
        for (int64_t n = 0; n < broad; n += width)
          tile_times<T, size, V>(tile, packed.panels.data() + n * deep, deep, end.from(first, n),
                                 out + first * columns + n0 + n, columns, std::min(width, broad - n));
      });
    }
  }
}

template <typename T>
void large_product(int64_t rows, int64_t columns, int64_t inner, Matrix<T> a, Matrix<T> b, Sum<T> sum, T* out) {
  (columns > Simd<T>::lanes ? product_by_panels<T, 2> : product_by_panels<T, 1>)(rows, columns, inner, a, b, sum, out);
}

} // namespace
} // namespace fedlit
