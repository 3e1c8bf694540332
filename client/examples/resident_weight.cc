// A layer of a model: the weight W stays on the devices, and each round puts an activation X, waits
// for Y = X * W, and gets Y. Prints the median time of a round.
// usage: resident_weight [endpoint [rounds]]
#include <agmm/agmm.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int64_t kTokens = 64, kIn = 512, kOut = 768;

// The activation of a round, in bf16: one small integer everywhere.
std::vector<agmm::BFloat16> Activation(int value) {
  return std::vector(kTokens * kIn, agmm::BFloat16(static_cast<float>(value)));
}

agmm::Status Round(agmm::Client& client, int value) {
  // From the second round on, "model.X" has this spec, so its contents are rewritten in place.
  auto put = client.Put<agmm::BFloat16>("model.X", kTokens, kIn, Activation(value), "[M_x, K]");
  if (!put.ok()) return put.status();
  auto job = client.Submit({.spec = "X[M_x, K] * W[K, N_x] -> Y[M, N_x]",
                            .a = "model.X",
                            .b = "model.W",
                            .c = "model.Y"});
  if (!job.ok()) return job.status();
  // The get below would wait for the job, too; this wait returns the job's error.
  if (auto done = job->Wait(); !done.ok()) return done.status();
  auto y = client.Get<agmm::BFloat16>("model.Y");
  if (!y.ok()) return y.status();
  // W is 1/32 everywhere: each element is K * value / 32.
  const float expected = static_cast<float>(kIn) * value / 32;
  for (const float element : *y)
    if (element != expected) return {agmm::StatusCode::kDataLoss, "Y is wrong"};
  return {};
}

agmm::Status Run(const char* endpoint, int rounds) {
  auto client = agmm::Client::Connect({.endpoint = endpoint, .session = true});
  if (!client.ok()) return client.status();
  const std::vector w(kIn * kOut, agmm::BFloat16(1.f / 32));
  auto weight = (*client)->Put<agmm::BFloat16>("model.W", kIn, kOut, w, "[K, N_x]");
  if (!weight.ok()) return weight.status();
  std::vector<double> times_us;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (auto status = Round(**client, round % 8 + 1); !status.ok()) return status;
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    times_us.push_back(time.count());
  }
  std::nth_element(times_us.begin(), times_us.begin() + rounds / 2, times_us.end());
  std::printf("%d rounds, median %.0f us\n", rounds, times_us[rounds / 2]);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 100;
  const agmm::Status status = Run(argc > 1 ? argv[1] : "", std::max(rounds, 1));
  if (!status.ok()) std::fprintf(stderr, "resident_weight: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
