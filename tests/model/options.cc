#include "tests/model/options.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace model {
namespace {

const char* Variable() {
  const char* text = std::getenv("AGMM_MODEL");
  return text ? text : "";
}

[[noreturn]] void Bad(const std::string& what) {
  std::fprintf(stderr, "model: AGMM_MODEL=\"%s\": %s; see tests/model/README.md\n", Variable(),
               what.c_str());
  std::abort();
}

int64_t Integer(const std::string& key, const std::string& text, int64_t least, int64_t most) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end) Bad(Format("%s=%s is not an integer", key.c_str(), text.c_str()));
  if (value < least || value > most) {
    Bad(Format("%s=%s is outside [%lld, %lld]", key.c_str(), text.c_str(), (long long)least,
               (long long)most));
  }
  return value;
}

int64_t Bytes(const std::string& key, const std::string& text) {
  constexpr std::array<const char*, 3> kUnits = {"KiB", "MiB", "GiB"};
  for (size_t i = 0; i < kUnits.size(); ++i) {
    if (text.size() > 3 && text.ends_with(kUnits[i])) {
      return Integer(key, text.substr(0, text.size() - 3), 1, 1 << 20) << (10 * (i + 1));
    }
  }
  Bad(Format("%s=%s wants KiB, MiB or GiB", key.c_str(), text.c_str()));
}

// The index of `text` in `names`.
int Choice(const std::string& key, const std::string& text, const std::vector<const char*>& names) {
  std::string all;
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<int>(i);
    all += (i ? ", " : "") + std::string(names[i]);
  }
  Bad(Format("%s=%s is not one of %s", key.c_str(), text.c_str(), all.c_str()));
}

// "a@b:c" as a, b and c; c is 0 where it is missing.
void Fault(const std::string& key, const std::string& text, std::string& what, int64_t& at,
           int& code) {
  const size_t place = text.find('@'), colon = text.find(':');
  if (place == std::string::npos) Bad(Format("%s=%s wants NAME@n", key.c_str(), text.c_str()));
  what = text.substr(0, place);
  at = Integer(key, text.substr(place + 1, colon - place - 1), 1, 1LL << 60);
  code = colon == std::string::npos ? 0 : Integer(key, text.substr(colon + 1), 1, 999);
}

void Set(Options& options, const std::string& key, const std::string& value) {
  if (key == "gpus") {
    options.gpus = Integer(key, value, 1, 16);
  } else if (key == "memory") {
    options.memory = Bytes(key, value);
  } else if (key == "peers") {
    options.peers = Peers(Choice(key, value, {"all", "pairs", "none"}));
  } else if (key == "channels") {
    options.channels = Integer(key, value, 1, 32);
  } else if (key == "depth") {
    options.depth = Integer(key, value, 1, 1 << 20);
  } else if (key == "order") {
    options.order = Order(Choice(key, value, {"eager", "lazy", "random", "oldest", "newest"}));
  } else if (key == "calls") {
    options.calls = Calls(Choice(key, value, {"free", "block", "lock"}));
  } else if (key == "orphans") {
    options.orphans = Orphans(Choice(key, value, {"released", "stuck", "refused"}));
  } else if (key == "seed") {
    options.seed = Integer(key, value, 0, 1LL << 62);
  } else if (key == "arch") {
    options.arch = Integer(key, value, 80, 129);
  } else if (key == "driver") {
    options.driver = value == "stub" ? 0 : Integer(key, value, 1, 99999);
  } else if (key == "machine") {
    options.machine = Integer(key, value, 1, 0xffffffff);
  } else if (key == "report") {
    options.report = value;
  } else if (key == "fail") {
    Options::Failure failure;
    Fault(key, value, failure.name, failure.call, failure.code);
    options.failures.push_back(failure);
  } else if (key == "lose") {
    std::string gpu;
    Options::Loss loss;
    Fault(key, value, gpu, loss.operation, loss.code);
    loss.gpu = Integer(key, gpu, 0, 15);
    options.losses.push_back(loss);
  } else if (key == "hang") {
    std::string gpu;
    Options::Hang hang;
    int code = 0;
    Fault(key, value, gpu, hang.operation, code);
    if (code) Bad(Format("%s=%s wants no code", key.c_str(), value.c_str()));
    hang.gpu = Integer(key, gpu, 0, 15);
    options.hangs.push_back(hang);
  } else {
    Bad(Format("\"%s\" is unknown", key.c_str()));
  }
}

Options Parse(const std::string& text) {
  Options options;
  options.machine = getpid();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string pair = text.substr(begin, end - begin);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) Bad(Format("\"%s\" wants NAME=value", pair.c_str()));
    Set(options, pair.substr(0, equals), pair.substr(equals + 1));
    begin = end + 1;
  }
  return options;
}

}  // namespace

const Options& TheOptions() {
  // Never destroyed, because the check for leaks runs after all destructors.
  static const Options& options = *new Options(Parse(Variable()));
  return options;
}

void Report(const std::string& line) {
  if (TheOptions().report.empty()) return;
  if (FILE* file = std::fopen(TheOptions().report.c_str(), "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

void Fail(const std::string& finding) {
  std::fprintf(stderr, "model: %s (AGMM_MODEL=\"%s\", seed %llu)\n", finding.c_str(), Variable(),
               (unsigned long long)TheOptions().seed);
  Report("finding=" + finding);
  std::abort();
}

std::string Format(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(std::vsnprintf(nullptr, 0, format, arguments), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(arguments);
  va_end(again);
  return text;
}

}  // namespace model
