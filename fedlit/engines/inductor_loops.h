// Part of every compiled program with a loop (`inductor_loops.py`): products of matrices, and memory in place of tensors.

#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace {

// ---- products of matrices ------------------------------------------------------------------------------------------

// What a product ends as: itself, or x - rate * product, which is then never written to memory.
template <typename T>
struct Written {
  at::vec::Vectorized<T> operator()(const at::vec::Vectorized<T>& product, long) const { return product; }
  Written from(long) const { return {}; }
};

template <typename T>
struct Moved {
  using Vec = at::vec::Vectorized<T>;
  const T* x;
  T rate;
  Vec operator()(const Vec& product, long offset) const { return Vec::loadu(x + offset) - Vec(rate) * product; }
  Moved from(long offset) const { return {x + offset, rate}; }
};

// R rows of a by V vectors of columns of b, which lie side by side. A function of its own: inside a long one, compilers
// write every sum to memory at every k.
template <typename T, int R, int V, int K, long AM, long AK, long BK, long ON, typename End>
__attribute__((noinline)) void product_block(const T* a, const T* b, T* out, const End end) {
  using Vec = at::vec::Vectorized<T>;
  Vec sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = Vec(T(0));
  for (int k = 0; k < K; k++)
    for (int v = 0; v < V; v++) {
      const Vec columns = Vec::loadu(b + k * BK + v * Vec::size());
      for (int r = 0; r < R; r++) sums[r][v] = at::vec::fmadd(Vec(a[r * AM + k * AK]), columns, sums[r][v]);
    }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) {
      const long offset = r * ON + v * Vec::size();
      end(sums[r][v], offset).store(out + offset);
    }
}

constexpr size_t NEAR = 16384; // bytes that stay in a core's nearest memory beside others

// As many sums at a time as hide the time that one takes. The last block of rows, and that of columns, may begin inside
// the one before: it writes the same numbers again.
template <typename T, int M, int N, int K, long AM, long AK, long BK, typename End = Written<T>>
inline void product_side_by_side(const T* a, const T* b, T* out, const End& end = {}) {
  constexpr int V = N >= 2 * at::vec::Vectorized<T>::size() ? 2 : 1, step = V * at::vec::Vectorized<T>::size();
  constexpr int most = 10 / V, R = M < most ? M : most;
  const auto block = [&](int m, int n) {
    const int row = m + R <= M ? m : M - R, column = n + step <= N ? n : N - step;
    const long first = (long)row * N + column;
    product_block<T, R, V, K, AM, AK, BK, N>(a + row * AM, b + column, out + first, end.from(first));
  };
  if constexpr (sizeof(T) * K * N <= NEAR) { // b stays: what is written is written in order
    for (int m = 0; m < M; m += R)
      for (int n = 0; n < N; n += step) block(m, n);
  } else { // a few columns of b stay
    for (int n = 0; n < N; n += step)
      for (int m = 0; m < M; m += R) block(m, n);
  }
}

// out (B, M, N) = a (B, M, K) b (B, K, N); the other numbers are strides.
template <typename T, int B, int M, int N, int K, long AB, long AM, long AK, long BB, long BK, long BN>
inline void product(const T* a, const T* b, T* out) {
  constexpr int W = at::vec::Vectorized<T>::size(), wide = N < W ? W : N;
  for (int batch = 0; batch < B; batch++, a += AB, b += BB, out += M * N) {
    if constexpr (BN == 1 && N >= W) {
      product_side_by_side<T, M, N, K, AM, AK, BK>(a, b, out);
    } else {
      alignas(64) T beside[K * wide];
      if constexpr (N < W) std::fill_n(beside, K * wide, T(0));
      if constexpr (BK == 1) {
        for (int n = 0; n < N; n += W)
          for (int k = 0; k < K; k += W)
            at::vec::transpose_mxn<T>(
                b + n * BN + k, BN, beside + k * wide + n, wide, std::min(W, N - n), std::min(W, K - k));
      } else {
        for (int k = 0; k < K; k++)
          for (int n = 0; n < N; n++) beside[k * wide + n] = b[k * BK + n * BN];
      }
      if constexpr (N >= W) {
        product_side_by_side<T, M, N, K, AM, AK, wide>(a, beside, out);
      } else {
        alignas(64) T made[M * wide];
        product_side_by_side<T, M, wide, K, AM, AK, wide>(a, beside, made);
        for (int m = 0; m < M; m++) std::copy_n(made + m * wide, N, out + m * N);
      }
    }
  }
}

// out (M, N) = x - rate * a (M, K) b (K, N), where rows of b, x and out lie side by side.
template <typename T, int M, int N, int K, long AM, long AK, long BK>
inline void moved(const T* x, const T* rate, const T* a, const T* b, T* out) {
  product_side_by_side<T, M, N, K, AM, AK, BK>(a, b, out, Moved<T>{x, *rate});
}

// out (N, M) = x (M, N)^T
template <typename T, int M, int N>
inline void turned(const T* x, T* out) {
  constexpr int W = at::vec::Vectorized<T>::size();
  for (int n = 0; n < N; n += W)
    for (int m = 0; m < M; m += W)
      at::vec::transpose_mxn<T>(x + m * N + n, N, out + n * M + m, M, std::min(W, M - m), std::min(W, N - n));
}

// The same where sizes are not constants: products that a tile of rows is too small for.
template <typename T>
inline void large_products(
    long batches, long rows, long columns, long inner, long ab, long am, long ak, long bb, long bk, long bn, const T* a,
    const T* b, T* out) {
  for (; batches > 0; batches--, a += ab, b += bb, out += rows * columns)
    fedlit::large_product<T>(rows, columns, inner, {a, am, ak}, {b, bk, bn}, {nullptr, 0, T(1)}, out);
}

template <typename T>
inline void large_moved(
    long rows, long columns, long inner, long am, long ak, long bk, long bn, const T* x, const T* rate, const T* a,
    const T* b, T* out) {
  fedlit::large_product<T>(rows, columns, inner, {a, am, ak}, {b, bk, bn}, {x, columns, -*rate}, out);
}

// ---- memory in place of tensors ------------------------------------------------------------------------------------

struct Plain { // a piece of memory in the place of a tensor
  char* at;
  size_t slot, bytes;
  void* data_ptr() const { return at; }
  Plain from(size_t offset) const { return {at + offset, slot, 0}; }
};

struct Memory { // pieces by number; a thread keeps them from call to call
  std::vector<char*> held;
  ~Memory() {
    for (char* piece : held) std::free(piece);
  }
  Plain piece(size_t slot, size_t bytes) {
    if (slot >= held.size()) held.resize(slot + 1, nullptr);
    if (held[slot] == nullptr) held[slot] = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    return {held[slot], slot, bytes};
  }
  Plain copy(size_t slot, size_t bytes, const void* from) {
    const Plain made = piece(slot, bytes);
    std::memcpy(made.at, from, bytes);
    return made;
  }
  void carry(Plain& carried, const Plain& made) { // what a turn has made becomes what the next one begins with
    if (made.bytes == carried.bytes) {
      std::swap(held[carried.slot], held[made.slot]);
      carried.at = held[carried.slot];
    } else { // a part of a piece
      std::memcpy(carried.at, made.at, carried.bytes);
    }
  }
};

inline AtenTensorHandle as_tensor(const Plain& value, AtenTensorHandle like) {
  int64_t dim, *sizes, *strides;
  int32_t dtype;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(like, &dim));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(like, &sizes));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(like, &strides));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like, &dtype));
  AtenTensorHandle made;
  AOTI_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &made));
  void* data;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(made, &data));
  std::memcpy(data, value.at, value.bytes);
  return made;
}

} // namespace
