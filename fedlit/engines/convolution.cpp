// Direct convolution with the samples innermost: tensors are (channels, height, width, samples), so a vector register
// holds one pixel of several samples. Few channels waste no lane, and at a border some taps are left out: nothing is
// padded. One thread each: the engine's workers call them side by side. `convolution.py` declares the operators.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using torch::stable::Tensor;

#if defined(__AVX512F__)
constexpr int64_t WIDEST = 64;
#else
constexpr int64_t WIDEST = 32;
#endif
constexpr int64_t NARROWEST = 32; // bytes of a vector
constexpr int64_t FEWEST_ROWS = 8; // of a batch (convolution.py): they fill one

template <typename T>
using Int = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>; // as many bits

template <typename T, int64_t bytes>
struct Simd {
  typedef T Vec __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
  typedef Int<T> Bits __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
  static constexpr int64_t lanes = bytes / sizeof(T);
};

// Keeps a value in a register: g++ would rather load it again for every product, and loads are what is scarce.
template <typename Vec>
inline Vec held(Vec value) {
#if defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

// Starts of the vectors that cover `length` numbers, of at least one vector. The last may overlap the one before it.
std::vector<int64_t> vector_starts(int64_t length, int64_t lanes) {
  std::vector<int64_t> starts;
  for (int64_t n = 0; n < length; n += lanes) starts.push_back(std::min(n, length - lanes));
  return starts;
}

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

struct Axis { // of a convolution: along the height or the width
  int64_t size, out, kernel, stride, padding, dilation;

  // The place in the input that tap k of output o reads; it may lie outside.
  int64_t place(int64_t o, int64_t k) const { return o * stride - padding + k * dilation; }
  // The same, or -1 outside.
  int64_t read(int64_t o, int64_t k) const { return place(o, k) < size ? std::max<int64_t>(place(o, k), -1) : -1; }
  // Tap k reads the input for the outputs from `first` up to `end`.
  int64_t first(int64_t k) const { return std::max<int64_t>(0, (padding - k * dilation + stride - 1) / stride); }
  int64_t end(int64_t k) const {
    const int64_t room = size - 1 + padding - k * dilation;
    return room < 0 ? 0 : std::min(out, room / stride + 1);
  }
};

// ---- forward, and gradient of the input: every pixel of the result gathers its taps --------------------------------

struct Taps { // of one pixel of the result along an axis: a pixel that is read and a weight, and so on in equal steps
  int64_t pixel = 0, weight = 0, count = 0, pixel_step = 0, weight_step = 0;

  void add(int64_t next_pixel, int64_t next_weight) {
    if (count == 0) pixel = next_pixel, weight = next_weight;
    if (count == 1) pixel_step = next_pixel - pixel, weight_step = next_weight - weight;
    count++;
  }
  bool operator==(const Taps&) const = default;
};

std::vector<Taps> taps_of_outputs(const Axis& axis) {
  std::vector<Taps> taps(axis.out);
  for (int64_t o = 0; o < axis.out; o++)
    for (int64_t k = 0; k < axis.kernel; k++)
      if (axis.read(o, k) >= 0) taps[o].add(axis.read(o, k), k);
  return taps;
}

std::vector<Taps> taps_of_inputs(const Axis& axis) { // the same pairs, by input
  std::vector<Taps> taps(axis.size);
  for (int64_t k = 0; k < axis.kernel; k++)
    for (int64_t o = 0; o < axis.out; o++)
      if (axis.read(o, k) >= 0) taps[axis.read(o, k)].add(o, k);
  return taps;
}

struct Span { // columns of the result that read neighbouring pixels with the same weights: one long row of samples
  int64_t column, length;
  Taps taps; // of the first column
};

std::vector<Span> spans_of(const std::vector<Taps>& columns) {
  std::vector<Span> spans;
  for (size_t c = 0; c < columns.size(); c++) {
    Taps next = spans.empty() ? Taps{} : spans.back().taps;
    if (!spans.empty()) next.pixel += spans.back().length;
    if (!spans.empty() && next == columns[c])
      spans.back().length++;
    else
      spans.push_back({int64_t(c), 1, columns[c]});
  }
  return spans;
}

template <typename T>
struct Gather { // one group of channels: (from, height, width, samples) -> (to, height, width, samples)
  const T* in;
  const T* weights; // (from, kernel height, kernel width, to)
  T* out;
  int64_t from, to, samples, in_height, in_width, kernel_height, kernel_width;
  std::vector<Taps> rows, columns;
};

// Some channels and vectors of the result: `in`, `weights` and `out` are where their first tap reads and they lie.
template <typename T, int64_t bytes, int channels, int vectors>
__attribute__((noinline)) void gather_vectors(
    const Gather<T>& g, const Taps& rows, const Taps& columns, const T* in, const T* weights, T* out,
    const int64_t* starts) {
  using Vec = typename Simd<T, bytes>::Vec;
  const int64_t line = g.in_width * g.samples, kernel_line = g.kernel_width * g.to;
  const int64_t x_step = columns.pixel_step * g.samples, w_step = columns.weight_step * g.to;
  Vec sums[channels][vectors];
  for (int k = 0; k < channels; k++)
    for (int v = 0; v < vectors; v++) sums[k][v] = Vec{};
  for (int64_t c = 0; c < g.from; c++, in += g.in_height * line, weights += g.kernel_height * kernel_line)
    for (int64_t r = 0; r < rows.count; r++) {
      const T* x = in + r * rows.pixel_step * line;
      const T* w = weights + r * rows.weight_step * kernel_line;
      for (int64_t i = 0; i < columns.count; i++, x += x_step, w += w_step) {
        Vec read[vectors];
        for (int v = 0; v < vectors; v++) read[v] = held(*reinterpret_cast<const Vec*>(x + starts[v]));
        for (int k = 0; k < channels; k++)
          for (int v = 0; v < vectors; v++) sums[k][v] += read[v] * w[k];
      }
    }
  const int64_t plane = g.rows.size() * g.columns.size() * g.samples;
  for (int k = 0; k < channels; k++)
    for (int v = 0; v < vectors; v++) *reinterpret_cast<Vec*>(out + k * plane + starts[v]) = sums[k][v];
}

// All channels of some vectors; as many at a time as registers hold.
template <typename T, int64_t bytes, int vectors>
void gather_channels(const Gather<T>& g, int64_t row, const Span& span, const int64_t* starts) {
  const Taps &rows = g.rows[row], &columns = span.taps;
  const int64_t plane = g.rows.size() * g.columns.size() * g.samples;
  const T* in = g.in + (rows.pixel * g.in_width + columns.pixel) * g.samples;
  const T* weights = g.weights + (rows.weight * g.kernel_width + columns.weight) * g.to;
  T* out = g.out + (row * g.columns.size() + span.column) * g.samples;
  in_tiles<vectors == 3 ? 4 : 6>(g.to, [&](auto channels, int64_t first) {
    gather_vectors<T, bytes, channels, vectors>(g, rows, columns, in, weights + first, out + first * plane, starts);
  });
}

template <typename T, int64_t bytes>
void gather(const Gather<T>& g) {
  const auto spans = spans_of(g.columns);
  std::vector<std::vector<int64_t>> all_starts;
  for (const Span& span : spans) all_starts.push_back(vector_starts(span.length * g.samples, Simd<T, bytes>::lanes));
  for (size_t row = 0; row < g.rows.size(); row++)
    for (size_t s = 0; s < spans.size(); s++) {
      const Span& span = spans[s];
      const auto& starts = all_starts[s];
      const int64_t count = starts.size();
      int64_t v = 0;
      for (; count - v == 2 || count - v > 3; v += 2) gather_channels<T, bytes, 2>(g, row, span, &starts[v]);
      if (count - v == 3) gather_channels<T, bytes, 3>(g, row, span, &starts[v]);
      if (count - v == 1) gather_channels<T, bytes, 1>(g, row, span, &starts[v]);
    }
}

// ---- gradient of the weights: every weight sums over the pixels and samples that it meets --------------------------

template <typename T>
struct Weigh { // one group of channels
  const T* in; // (from, height, width, samples)
  const T* slope; // (to, out height, out width, samples)
  int64_t from, to, samples;
  Axis rows, columns;
  std::vector<T> zeros; // a row of what lies outside of the input
};

// sums[c][j] += slope[c] * x[j] over `length` numbers; `slope` has the channels `plane` apart.
template <typename T, int64_t bytes, int channels, int weights>
__attribute__((noinline)) void weigh_vectors(
    const T* slope, int64_t plane, const T* const* x, int64_t length, typename Simd<T, bytes>::Vec (*all)[weights]) {
  using Vec = typename Simd<T, bytes>::Vec;
  using Bits = typename Simd<T, bytes>::Bits;
  constexpr int64_t lanes = Simd<T, bytes>::lanes;
  const int64_t tail = length % lanes;
  Vec sums[channels][weights];
  for (int c = 0; c < channels; c++)
    for (int j = 0; j < weights; j++) sums[c][j] = all[c][j];
  const T* at[weights];
  for (int j = 0; j < weights; j++) at[j] = x[j];
  for (int64_t n = 0; n + lanes <= length; n += lanes) {
    Vec s[channels];
    for (int c = 0; c < channels; c++) s[c] = held(*reinterpret_cast<const Vec*>(slope + c * plane + n));
    for (int j = 0; j < weights; j++) {
      const Vec value = held(*reinterpret_cast<const Vec*>(at[j] + n));
      for (int c = 0; c < channels; c++) sums[c][j] += s[c] * value;
    }
  }
  if (tail > 0) { // a vector that ends where the numbers end; what was counted before is left out
    Bits left;
    for (int64_t lane = 0; lane < lanes; lane++) left[lane] = lane < lanes - tail ? 0 : -1;
    for (int c = 0; c < channels; c++) {
      const Vec s = (Vec)(*reinterpret_cast<const Bits*>(slope + c * plane + length - lanes) & left);
      for (int j = 0; j < weights; j++) sums[c][j] += s * *reinterpret_cast<const Vec*>(at[j] + length - lanes);
    }
  }
  for (int c = 0; c < channels; c++)
    for (int j = 0; j < weights; j++) all[c][j] = sums[c][j];
}

// Adds one row of the output to `all_sums` (to, from * kernel, lanes), for some channels and some weights of each.
template <typename T, int64_t bytes, int channels, int weights>
void weigh_row(const Weigh<T>& g, int64_t row, int64_t first, int64_t weight, T* all_sums) {
  using Vec = typename Simd<T, bytes>::Vec;
  constexpr int64_t lanes = Simd<T, bytes>::lanes;
  const int64_t kernel = g.rows.kernel * g.columns.kernel, plane = g.rows.out * g.columns.out * g.samples;
  const T* lines[weights]; // of the input, where column 0 of the output meets each weight
  int64_t steps[weights], begins[weights], ends[weights]; // from column to column; the columns that meet it
  int64_t begin = 0, end = g.columns.stride == 1 ? g.columns.out : 0; // the columns that meet all of them, in one row
  for (int j = 0; j < weights; j++) {
    const int64_t channel = (weight + j) / kernel, ky = (weight + j) % kernel / g.columns.kernel;
    const int64_t kx = (weight + j) % g.columns.kernel, y = g.rows.read(row, ky);
    const bool outside = y < 0;
    lines[j] = g.in + ((channel * g.rows.size + y) * g.columns.size + g.columns.place(0, kx)) * g.samples;
    if (outside) lines[j] = g.zeros.data();
    steps[j] = outside ? 0 : g.columns.stride * g.samples;
    begins[j] = outside ? 0 : g.columns.first(kx);
    ends[j] = outside ? g.columns.out : g.columns.end(kx);
    begin = std::max(begin, begins[j]);
    end = std::min(end, ends[j]);
  }
  Vec sums[channels][weights];
  for (int c = 0; c < channels; c++)
    for (int j = 0; j < weights; j++) sums[c][j] = Vec{};
  const T* slope = g.slope + (first * g.rows.out + row) * g.columns.out * g.samples;
  for (int64_t column = 0; column < g.columns.out;) {
    const int64_t columns = column == begin && end > begin ? end - begin : 1;
    const T* x[weights];
    for (int j = 0; j < weights; j++)
      x[j] = column >= begins[j] && column < ends[j] ? lines[j] + column * steps[j] : g.zeros.data();
    weigh_vectors<T, bytes, channels, weights>(slope + column * g.samples, plane, x, columns * g.samples, sums);
    column += columns;
  }
  for (int c = 0; c < channels; c++)
    for (int j = 0; j < weights; j++)
      *reinterpret_cast<Vec*>(all_sums + ((first + c) * g.from * kernel + weight + j) * lanes) += sums[c][j];
}

template <typename T, int64_t bytes>
void weigh(const Weigh<T>& g, T* result) {
  constexpr int64_t lanes = Simd<T, bytes>::lanes;
  const int64_t count = g.to * g.from * g.rows.kernel * g.columns.kernel;
  std::vector<T> sums(count * lanes, T(0)); // a vector for each weight
  for (int64_t row = 0; row < g.rows.out; row++)
    in_tiles<3>(g.to, [&](auto channels, int64_t first) {
      in_tiles<4>(count / g.to, [&](auto weights, int64_t weight) {
        weigh_row<T, bytes, channels, weights>(g, row, first, weight, sums.data());
      });
    });
  for (int64_t i = 0; i < count; i++) {
    T sum = 0;
    for (int64_t lane = 0; lane < lanes; lane++) sum += sums[i * lanes + lane];
    result[i] = sum;
  }
}

// ---- the operators -------------------------------------------------------------------------------------------------

// Calls body(type, bytes) with a zero of the tensor's type and the widest vector that the samples fill.
template <typename Body>
void by_type(const Tensor& x, int64_t samples, const Body& body) {
  const auto by_width = [&](auto zero) {
    if (samples * int64_t(sizeof(zero)) >= WIDEST) return body(zero, std::integral_constant<int64_t, WIDEST>());
    body(zero, std::integral_constant<int64_t, NARROWEST>());
  };
  STD_TORCH_CHECK(samples >= FEWEST_ROWS, "a direct convolution takes 8 samples or more");
  if (x.scalar_type() == torch::headeronly::ScalarType::Double) return by_width(double(0));
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "a direct convolution takes float or double");
  by_width(float(0));
}

template <typename T>
const T* read(const Tensor& x) {
  return static_cast<const T*>(x.data_ptr());
}

template <typename T>
T* write(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

int64_t positions(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

template <int64_t count, typename T>
inline void turn(const T* column, int64_t step, T* row) { // numbers that lie `step` apart, next to each other
  T numbers[count];
  for (int64_t m = 0; m < count; m++) numbers[m] = column[m * step];
  for (int64_t m = 0; m < count; m++) row[m] = numbers[m];
}

// Turns a square of 8 × 8 bytes, a word each row: halves of words change places, then quarters, then bytes.
inline void turn_square(const uint8_t* in, int64_t in_step, uint8_t* out, int64_t out_step) {
  constexpr uint64_t masks[] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
  uint64_t words[8];
  for (int m = 0; m < 8; m++) std::memcpy(&words[m], in + m * in_step, 8);
#pragma GCC unroll 3
  for (int step = 0; step < 3; step++) {
    const int apart = 4 >> step, bits = 32 >> step;
#pragma GCC unroll 8
    for (int m = 0; m < 8; m++)
      if ((m & apart) == 0) {
        const uint64_t moved = ((words[m] >> bits) ^ words[m + apart]) & masks[step];
        words[m + apart] ^= moved;
        words[m] ^= moved << bits;
      }
  }
  for (int m = 0; m < 8; m++) std::memcpy(out + m * out_step, &words[m], 8);
}

Tensor pack(Tensor x) { // (samples, channels, height, width) -> (channels, height, width, samples)
  const int64_t samples = x.size(0), numbers = x.numel() / samples;
  Tensor out = torch::stable::new_empty(x, {x.size(1), x.size(2), x.size(3), samples});
  by_type(x, samples, [&](auto zero, auto) {
    using T = decltype(zero);
    const T* in = read<T>(x);
    T* to = write<T>(out);
    constexpr int64_t width = 64 / sizeof(T), rows = FEWEST_ROWS; // a cache line; more rows would evict each other
    for (int64_t i = 0; i < numbers; i += width)
      for (const int64_t n : vector_starts(samples, rows))
        if (i + width <= numbers)
          for (int64_t j = i; j < i + width; j++) turn<rows>(in + n * numbers + j, numbers, to + j * samples + n);
        else
          for (int64_t j = i; j < numbers; j++) turn<rows>(in + n * numbers + j, numbers, to + j * samples + n);
  });
  return out;
}

Tensor take(Tensor x, Tensor index) { // pictures of bytes with these numbers
  const int64_t count = index.numel(), numbers = x.numel() / std::max<int64_t>(x.size(0), 1);
  Tensor out = torch::stable::new_empty(x, {count, x.size(1), x.size(2), x.size(3)});
  for (int64_t n = 0; n < count; n++) {
    const int64_t number = read<int64_t>(index)[n];
    STD_TORCH_CHECK(number >= 0 && number < x.size(0), "a picture is asked for that does not exist");
    std::copy_n(read<uint8_t>(x) + number * numbers, numbers, write<uint8_t>(out) + n * numbers);
  }
  return out;
}

Tensor pack_bytes(Tensor x, Tensor like) { // as `pack`, of bytes as numbers of the type of `like`
  const int64_t samples = x.size(0), numbers = x.numel() / samples;
  Tensor out = torch::stable::new_empty(like, {x.size(1), x.size(2), x.size(3), samples});
  by_type(like, samples, [&](auto zero, auto) {
    using T = decltype(zero);
    const uint8_t* in = read<uint8_t>(x);
    const auto starts = vector_starts(samples, FEWEST_ROWS);
    std::vector<uint8_t> turned(64 * samples); // of a cache line; bytes are turned first, since g++ has no vectors for both
    for (int64_t i = 0; i < numbers; i += 64) {
      const int64_t width = std::min<int64_t>(64, numbers - i), squares = width / 8 * 8;
      for (const int64_t n : starts)
        for (int64_t j = 0; j < squares; j += 8)
          turn_square(in + n * numbers + i + j, numbers, &turned[j * samples + n], samples);
      for (int64_t j = squares; j < width; j++)
        for (int64_t n = 0; n < samples; n++) turned[j * samples + n] = in[n * numbers + i + j];
      T* to = write<T>(out) + i * samples;
      for (int64_t k = 0; k < width * samples; k++) to[k] = turned[k];
    }
  });
  return out;
}

// (to, from / groups, kernel) weights as the (from / groups, kernel, to) of one group, or with both channels exchanged.
template <typename T>
std::vector<T> turned(const T* weights, int64_t to, int64_t from, int64_t kernel, bool exchanged) {
  std::vector<T> result(to * from * kernel);
  for (int64_t t = 0; t < to; t++)
    for (int64_t f = 0; f < from; f++)
      for (int64_t k = 0; k < kernel; k++)
        result[exchanged ? (t * kernel + k) * from + f : (f * kernel + k) * to + t] = weights[(t * from + f) * kernel + k];
  return result;
}

Tensor forward(
    Tensor x, Tensor w, int64_t sy, int64_t sx, int64_t py, int64_t px, int64_t dy, int64_t dx, int64_t groups) {
  const Axis rows{x.size(1), positions(x.size(1), w.size(2), sy, py, dy), w.size(2), sy, py, dy};
  const Axis columns{x.size(2), positions(x.size(2), w.size(3), sx, px, dx), w.size(3), sx, px, dx};
  const int64_t samples = x.size(3), to = w.size(0) / groups, from = w.size(1), kernel = w.size(2) * w.size(3);
  Tensor out = torch::stable::new_empty(x, {w.size(0), rows.out, columns.out, samples});
  by_type(x, samples, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    for (int64_t g = 0; g < groups; g++) {
      const auto weights = turned(read<T>(w) + g * to * from * kernel, to, from, kernel, false);
      const T* in = read<T>(x) + g * from * rows.size * columns.size * samples;
      T* result = write<T>(out) + g * to * rows.out * columns.out * samples;
      gather<T, bytes>(
          {in, weights.data(), result, from, to, samples, rows.size, columns.size, rows.kernel, columns.kernel,
           taps_of_outputs(rows), taps_of_outputs(columns)});
    }
  });
  return out;
}

Tensor grad_input(
    Tensor slope, Tensor w, int64_t height, int64_t width, int64_t sy, int64_t sx, int64_t py, int64_t px, int64_t dy,
    int64_t dx, int64_t groups) {
  const Axis rows{height, slope.size(1), w.size(2), sy, py, dy}, columns{width, slope.size(2), w.size(3), sx, px, dx};
  const int64_t samples = slope.size(3), to = w.size(0) / groups, from = w.size(1), kernel = w.size(2) * w.size(3);
  Tensor out = torch::stable::new_empty(slope, {from * groups, height, width, samples});
  by_type(slope, samples, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    for (int64_t g = 0; g < groups; g++) {
      const auto weights = turned(read<T>(w) + g * to * from * kernel, to, from, kernel, true);
      const T* in = read<T>(slope) + g * to * rows.out * columns.out * samples;
      T* result = write<T>(out) + g * from * rows.size * columns.size * samples;
      gather<T, bytes>(
          {in, weights.data(), result, to, from, samples, rows.out, columns.out, rows.kernel, columns.kernel,
           taps_of_inputs(rows), taps_of_inputs(columns)});
    }
  });
  return out;
}

Tensor grad_weight(
    Tensor slope, Tensor x, int64_t kernel_height, int64_t kernel_width, int64_t sy, int64_t sx, int64_t py, int64_t px,
    int64_t dy, int64_t dx, int64_t groups) {
  const Axis rows{x.size(1), slope.size(1), kernel_height, sy, py, dy};
  const Axis columns{x.size(2), slope.size(2), kernel_width, sx, px, dx};
  const int64_t samples = x.size(3), to = slope.size(0) / groups, from = x.size(0) / groups;
  Tensor out = torch::stable::new_empty(x, {to * groups, from, kernel_height, kernel_width});
  by_type(x, samples, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    for (int64_t g = 0; g < groups; g++) {
      const T* in = read<T>(x) + g * from * rows.size * columns.size * samples;
      const T* slopes = read<T>(slope) + g * to * rows.out * columns.out * samples;
      weigh<T, bytes>(
          {in, slopes, from, to, samples, rows, columns, std::vector<T>(columns.out * samples, T(0))},
          write<T>(out) + g * to * from * kernel_height * kernel_width);
    }
  });
  return out;
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(fedlit, CPU, library) {
  library.impl("pack", TORCH_BOX(&pack));
  library.impl("pack_bytes", TORCH_BOX(&pack_bytes));
  library.impl("take", TORCH_BOX(&take));
  library.impl("forward", TORCH_BOX(&forward));
  library.impl("grad_input", TORCH_BOX(&grad_input));
  library.impl("grad_weight", TORCH_BOX(&grad_weight));
}
