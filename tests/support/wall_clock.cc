// A wall clock that a test sets: preloaded into a program, it adds the seconds that the file
// AGMM_TEST_WALL_CLOCK holds to CLOCK_REALTIME, even while threads wait for a time on it.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Longest time for which a waiting thread does not see that the clock was set.
constexpr int64_t kSlice = kSecond / 50;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int64_t SetNanos() {
  static const int fd = open(getenv("AGMM_TEST_WALL_CLOCK"), O_RDONLY | O_CLOEXEC);
  char text[32] = {};
  return pread(fd, text, sizeof(text) - 1, 0) > 0 ? atoll(text) * kSecond : 0;
}

int64_t RealNanos() {
  timespec now;
  static const auto real = Next<int(clockid_t, timespec*)>("clock_gettime");
  real(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

timespec ToTimespec(int64_t ns) { return {ns / kSecond, ns % kSecond}; }

// Calls `wait` with times of the real clock until it returns something other than `timed_out`, or
// until the clock of the test reaches `until`.
template <typename Wait, typename Result>
Result InSlices(const timespec& until, Result timed_out, Wait wait) {
  const int64_t until_ns = until.tv_sec * kSecond + until.tv_nsec;
  while (true) {
    const int64_t real_ns = RealNanos(), left_ns = until_ns - SetNanos() - real_ns;
    const timespec slice = ToTimespec(real_ns + (left_ns < kSlice ? left_ns : kSlice));
    const Result result = wait(&slice);
    if (result != timed_out || left_ns <= kSlice) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  static const auto real = Next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
    *now = ToTimespec(now->tv_sec * kSecond + now->tv_nsec + SetNanos());
  return result;
}

int gettimeofday(timeval* now, void*) {
  const int64_t ns = RealNanos() + SetNanos();
  *now = {ns / kSecond, ns % kSecond / 1000};
  return 0;
}

time_t time(time_t* out) {
  const time_t now = (RealNanos() + SetNanos()) / kSecond;
  if (out != nullptr) *out = now;
  return now;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  static const auto real =
      Next<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  return InSlices(*until, ETIMEDOUT,
                  [&](const timespec* slice) { return real(condition, mutex, slice); });
}

// Intercepts the waits of Abseil.
long syscall(long number, ...) {
  static const auto real = Next<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto* until = reinterpret_cast<const timespec*>(a[3]);
  if (number != SYS_futex || (a[1] & FUTEX_CLOCK_REALTIME) == 0 || until == nullptr)
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const long timed_out = -ETIMEDOUT;
  const long result = InSlices(*until, timed_out, [&](const timespec* slice) {
    const long result = real(number, a[0], a[1], a[2], slice, a[4], a[5]);
    return result == -1 && errno == ETIMEDOUT ? timed_out : result;
  });
  return result == timed_out ? (errno = ETIMEDOUT, -1) : result;
}

}  // extern "C"
