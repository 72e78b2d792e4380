// What a worker does around the steps of its compiled program: it draws its clients' mini-batches, calls the program
// and swaps clients. The same as the Python of `vectorized.Worker`, to the bit, but without the interpreter: on a small
// net that costs as much as the steps, and threads do it one after the other. `native.py` declares the operators.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace at {
void set_num_threads(int); // ATen/Parallel.h, which would bring all of torch's headers
}

extern "C" { // of Python's stable interface
int PyGILState_Ensure();
void PyGILState_Release(int);
}

namespace {

using torch::stable::Tensor;

struct Job { // a client's place on the time axis of its lane, steps [start, end), and what its draws are made of
  int64_t lane, row, start, end, first, size, per_epoch, key;
};

struct Jobs { // by lane, and in the order of time
  const Job* from;
  const Job* to;
  explicit Jobs(const Tensor& table) : from(static_cast<const Job*>(table.data_ptr())), to(from + table.size(0)) {
    STD_TORCH_CHECK(table.size(1) * sizeof(int64_t) == sizeof(Job), "a job has other columns");
  }
  const Job* begin() const { return from; }
  const Job* end() const { return to; }
};

template <typename T>
T* data(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

// ---- mini-batches --------------------------------------------------------------------------------------------------

struct Philox { // Philox4x64-10 as NumPy has it: counts, then draws four words, of which each gives two halves
  uint64_t key[2], counter[4], words[4] = {};
  int used = 4;
  uint32_t upper = 0;
  bool has_upper = false;

  uint32_t next() {
    if (has_upper) {
      has_upper = false;
      return upper;
    }
    if (used == 4) draw();
    const uint64_t word = words[used++];
    upper = word >> 32;
    has_upper = true;
    return uint32_t(word);
  }

  void draw() {
    for (int i = 0; i < 4 && ++counter[i] == 0; i++) {
    }
    uint64_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
      const auto even = static_cast<unsigned __int128>(c[0]) * 0xD2E7470EE14C6C93u;
      const auto odd = static_cast<unsigned __int128>(c[2]) * 0xCA5A826395121157u;
      const uint64_t next[4] = {
          uint64_t(odd >> 64) ^ c[1] ^ k[0], uint64_t(odd), uint64_t(even >> 64) ^ c[3] ^ k[1], uint64_t(even)};
      std::copy(next, next + 4, c);
      k[0] += 0x9E3779B97F4A7C15u;
      k[1] += 0xBB67AE8584CAA73Bu;
    }
    std::copy(c, c + 4, words);
    used = 0;
  }

  // A number from 0 up to and including `last`, as NumPy's shuffles draw it: bits until they are small enough.
  uint32_t up_to(uint32_t last) {
    const uint32_t mask = ~uint32_t(0) >> __builtin_clz(last);
    uint32_t value;
    do value = next() & mask;
    while (value > last);
    return value;
  }

  void shuffle(std::vector<int64_t>& values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[up_to(uint32_t(i))]);
  }
};

// Writes the steps [window, until) of every lane: row numbers, row weights and the client's own number of each step.
template <typename T>
void write_plans(
    Jobs jobs, const int64_t* rows, const Tensor& index, const Tensor& weights, const Tensor& step,
    const Philox& stream, int64_t batch, int64_t window, int64_t until) {
  const int64_t lanes = index.size(1), per_step = index.size(2) / batch;
  std::fill_n(data<T>(weights), (until - window) * weights.stride(0), T(0)); // a lane without a client is idle
  std::vector<int64_t> shuffled;
  for (const Job& job : jobs) {
    const int64_t first = std::max(job.start, window), last = std::min(job.end, until);
    if (first >= last) continue;
    STD_TORCH_CHECK(job.per_epoch > 0, "a client without batches has steps");
    for (int64_t t = first; t < last; t++) data<int64_t>(step)[(t - window) * lanes + job.lane] = t - job.start;
    Philox draws = stream;
    draws.key[1] = uint64_t(job.key);
    const int64_t* own = rows + job.first;
    const int64_t from = (first - job.start) * per_step, to = (last - job.start) * per_step; // batches
    for (int64_t epoch = 0; epoch < to; epoch += job.per_epoch) { // its first batch
      shuffled.assign(own, own + job.size);
      draws.shuffle(shuffled);
      for (int64_t b = std::max(epoch, from); b < std::min(epoch + job.per_epoch, to); b++) {
        const int64_t begin = (b - epoch) * batch, count = std::min(batch, job.size - begin);
        const int64_t t = first - window + (b - from) / per_step;
        const int64_t place = ((t * lanes + job.lane) * per_step + b % per_step) * batch;
        int64_t* numbers = data<int64_t>(index) + place;
        std::copy_n(shuffled.data() + begin, count, numbers);
        std::fill(numbers + count, numbers + batch, own[0]); // padding is any valid row; its weight is 0
        std::fill_n(data<T>(weights) + place, count, T(1.0 / double(count)));
      }
    }
  }
}

// ---- the program, and clients into and out of its lanes ------------------------------------------------------------

using Entry = void (*)(AtenTensorHandle*, AtenTensorHandle*); // takes the first handles and gives the others

struct Gil { // the program's entry wants it, and lets it go while it computes
  int state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

Tensor call(Entry entry, const Tensor& flat, const std::vector<Tensor>& rest) {
  std::vector<AtenTensorHandle> given(1 + rest.size());
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(flat.get(), &given[0]));
  for (size_t i = 0; i < rest.size(); i++)
    TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(rest[i].get(), &given[1 + i]));
  AtenTensorHandle moved = nullptr;
  entry(given.data(), &moved);
  return Tensor(moved);
}

struct Worker { // one thread's lanes, and its share of the cohort
  Entry entry;
  Tensor flat, read;
  std::vector<Tensor> rest; // what the program takes beside them: …, the schedule, the first step and the last
  Tensor jobs, out;
  std::vector<Tensor> context; // what clients' steps read, by client
  std::vector<int64_t> places; // of these in a row of `read`
  Tensor rows;
  Philox stream;
  int64_t batch;
  bool plans; // whether it draws its mini-batches; else they are in the schedule
  int64_t now, until; // where it is, and where it is to come
  std::vector<const Job*> lanes; // who is in each of them

  const Tensor& schedule(size_t part) const { return rest[rest.size() - 6 + part]; }
  int64_t capacity() const { return schedule(0).size(0); }

  void plan(int64_t window) const {
    const Tensor &index = schedule(0), &weights = schedule(1), &step = schedule(2);
    const auto write = weights.element_size() == sizeof(double) ? write_plans<double> : write_plans<float>;
    const int64_t end = std::min(until, window + capacity());
    write(Jobs(jobs), data<int64_t>(rows), index, weights, step, stream, batch, window, end);
  }

  void put(const Job& job) const {
    const int64_t number = flat.element_size(), width = out.size(1) * number, read_width = read.size(1) * number;
    std::memcpy(data<char>(flat) + job.lane * width, data<char>(out) + job.row * width, width);
    for (size_t i = 0; i < context.size(); i++) {
      const int64_t stride = context[i].stride(0) * number, size = context[i].numel() / context[i].size(0) * number;
      char* const place = data<char>(read) + job.lane * read_width + places[i] * number;
      std::memcpy(place, data<char>(context[i]) + job.row * stride, size);
    }
  }

  void take(const Job& job) const {
    const int64_t width = out.size(1) * int64_t(flat.element_size());
    std::memcpy(data<char>(out) + job.row * width, data<char>(flat) + job.lane * width, width);
  }

  // Takes out the clients that are done and puts the next ones in.
  void swap() {
    for (const Job*& job : lanes) {
      if (job == nullptr || job->end != now) continue;
      take(*job);
      const Job* const next = job + 1;
      job = next != Jobs(jobs).end() && next->lane == job->lane ? next : nullptr;
      if (job != nullptr) put(*job);
    }
  }

  // Runs up to `until`; once the time is over, up to the next end of a client.
  void run(std::chrono::steady_clock::time_point deadline) {
    lanes.assign(flat.size(0), nullptr);
    for (const Job& job : Jobs(jobs))
      if (job.end > now && lanes[job.lane] == nullptr) lanes[job.lane] = &job;
    if (now == 0)
      for (const Job* job : lanes)
        if (job != nullptr) put(*job);
    const Tensor own = flat;
    std::vector<Tensor> given{read};
    given.insert(given.end(), rest.begin(), rest.end());
    while (now < until) {
      const int64_t window = now / capacity() * capacity();
      if (plans && now == window) plan(window);
      const Gil gil;
      do {
        int64_t end = std::min(until, window + capacity());
        for (const Job* job : lanes)
          if (job != nullptr) end = std::min(end, job->end);
        *data<int64_t>(schedule(4)) = now - window;
        *data<int64_t>(schedule(5)) = end - window;
        flat = call(entry, flat, given);
        now = end;
        swap();
      } while (now < std::min(until, window + capacity()) && std::chrono::steady_clock::now() < deadline);
      if (std::chrono::steady_clock::now() >= deadline) break;
    }
    std::memcpy(data<char>(own), data<char>(flat), own.numel() * own.element_size());
  }
};

// ---- threads -------------------------------------------------------------------------------------------------------

constexpr auto AWAKE = std::chrono::milliseconds(10); // more than the server's part of a small round

// Whether it is so, now or within a short time, for which the thread stays awake. A core that falls asleep between two
// short rounds takes long to come back, above all in a virtual machine, and the other cores are slower meanwhile.
template <typename Condition>
bool comes_soon(const Condition& is_so) {
  const auto end = std::chrono::steady_clock::now() + AWAKE;
  while (std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 50; i++, sched_yield())
      if (is_so()) return true;
  return is_so();
}

class Helper { // a thread that runs one worker at a time
 public:
  Helper() {
    std::thread([this] { serve(); }).detach();
  }

  void start(Worker& worker, std::chrono::steady_clock::time_point deadline) {
    {
      const std::lock_guard lock(mutex_);
      worker_ = &worker, deadline_ = deadline, error_ = nullptr;
      busy_.store(true);
    }
    awake_.notify_one();
  }

  void wait() {
    if (comes_soon([this] { return !busy_.load(); })) return;
    while (busy_.load()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

  std::exception_ptr error() const { return error_; }

 private:
  void serve() {
    at::set_num_threads(1); // inside an operation: workers are the threads
    while (true) {
      if (!comes_soon([this] { return busy_.load(); })) {
        std::unique_lock lock(mutex_);
        awake_.wait(lock, [this] { return busy_.load(); });
      }
      try {
        worker_->run(deadline_);
      } catch (...) {
        error_ = std::current_exception();
      }
      busy_.store(false);
    }
  }

  Worker* worker_ = nullptr;
  std::chrono::steady_clock::time_point deadline_;
  std::exception_ptr error_;
  std::atomic<bool> busy_ = false;
  std::mutex mutex_;
  std::condition_variable awake_;
};

class Helpers { // some threads; they are made where there are too few, and live as long as the process
 public:
  explicit Helpers(size_t count) {
    const std::lock_guard lock(mutex());
    for (; taken.size() < count; idle().pop_back()) {
      if (idle().empty()) idle().push_back(new Helper);
      taken.push_back(idle().back());
    }
  }
  ~Helpers() {
    const std::lock_guard lock(mutex());
    idle().insert(idle().end(), taken.rbegin(), taken.rend());
  }
  std::vector<Helper*> taken;

 private:
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<Helper*>& idle() {
    static auto* const idle = new std::vector<Helper*>;
    static const int forgotten = pthread_atfork(nullptr, nullptr, [] { idle->clear(); }); // a fork has no threads
    static_cast<void>(forgotten);
    return *idle;
  }
};

void run_together(std::vector<Worker>& workers, std::chrono::steady_clock::time_point deadline) {
  const Helpers helpers(workers.size() - 1);
  for (size_t i = 0; i < helpers.taken.size(); i++) helpers.taken[i]->start(workers[i + 1], deadline);
  std::exception_ptr error;
  try {
    workers[0].run(deadline); // the calling thread works too
  } catch (...) {
    error = std::current_exception();
  }
  for (Helper* helper : helpers.taken) {
    helper->wait(); // nobody trains on when the round has failed
    if (error == nullptr) error = helper->error();
  }
  if (error != nullptr) std::rethrow_exception(error);
}

// Each worker from `now` up to `until`, or, once the time is over, up to a client's end; returns where each of them is.
std::vector<int64_t> train(
    int64_t entry, std::vector<Tensor> flats, std::vector<Tensor> reads, std::vector<Tensor> rest,
    std::vector<Tensor> jobs, Tensor out, std::vector<Tensor> context, std::vector<int64_t> places, Tensor rows,
    std::vector<int64_t> draws, bool plans, std::vector<int64_t> now, std::vector<int64_t> until, double seconds) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> patience(seconds);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  const Philox stream{{uint64_t(draws[0]), 0}, {0, 0, uint64_t(draws[1]), uint64_t(draws[2])}};
  std::vector<Worker> workers;
  const size_t each = rest.size() / flats.size();
  for (size_t i = 0; i < flats.size(); i++)
    workers.push_back(
        {reinterpret_cast<Entry>(entry), flats[i], reads[i],
         std::vector<Tensor>(rest.begin() + i * each, rest.begin() + (i + 1) * each), jobs[i], out, context, places,
         rows, stream, draws[3], plans, now[i], until[i], {}});
  run_together(workers, deadline);
  for (size_t i = 0; i < workers.size(); i++) now[i] = workers[i].now;
  return now;
}

// One client's mini-batches alone, for comparison with NumPy's.
void plan(
    Tensor jobs, Tensor rows, Tensor index, Tensor weights, Tensor step, std::vector<int64_t> draws, int64_t window,
    int64_t until) {
  const Philox stream{{uint64_t(draws[0]), 0}, {0, 0, uint64_t(draws[1]), uint64_t(draws[2])}};
  const auto write = weights.element_size() == sizeof(double) ? write_plans<double> : write_plans<float>;
  write(Jobs(jobs), data<int64_t>(rows), index, weights, step, stream, draws[3], window, until);
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(fedlit_lanes, CPU, library) {
  library.impl("plan", TORCH_BOX(&plan));
  library.impl("train", TORCH_BOX(&train));
}
