// Computes C = A * B on all devices of a world, with A's rows and B's columns spread over them.
// usage: one_product [endpoint]
#include <agmm/agmm.h>

#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kM = 300, kK = 200, kN = 100;

// Row-major; small integers, so that every sum is exact.
std::vector<float> Matrix(int64_t rows, int64_t cols, int seed) {
  std::vector<float> values(rows * cols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>((i * 7 + seed) % 9) - 4;
  return values;
}

int64_t BytesOf(const std::vector<float>& values) { return values.size() * sizeof(float); }

agmm::Status Run(const char* endpoint) {
  // In a session, the tensors are deleted when the client ends.
  auto client = agmm::Client::Connect({.endpoint = endpoint, .session = true});
  if (!client.ok()) return client.status();

  const std::vector<float> a = Matrix(kM, kK, 1), b = Matrix(kK, kN, 2);
  auto put = (*client)->Put("product.A", {.rows = kM, .cols = kK, .sharding = "[M_x, K]"}, a.data(),
                            BytesOf(a));
  if (!put.ok()) return put.status();
  put = (*client)->Put("product.B", {.rows = kK, .cols = kN, .sharding = "[K, N_x]"}, b.data(),
                       BytesOf(b));
  if (!put.ok()) return put.status();

  auto job = (*client)->Submit({.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                                .a = "product.A",
                                .b = "product.B",
                                .c = "product.C"});
  if (!job.ok()) return job.status();
  auto done = job->Wait();
  if (!done.ok()) return done.status();

  std::vector<float> c(kM * kN);
  auto got = (*client)->Get("product.C", c.data(), BytesOf(c));
  if (!got.ok()) return got.status();

  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < kK; ++k) sum += a[i * kK + k] * b[k * kN + j];
      if (c[i * kN + j] != sum) return {agmm::StatusCode::kDataLoss, "C is wrong"};
    }
  }
  std::printf("C (%ld x %ld) is right: %s over %s, %.0f us\n", long{kM}, long{kN},
              done->algorithm.c_str(), put->spec.mesh.c_str(), done->figures.time_us);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const agmm::Status status = Run(argc > 1 ? argv[1] : "");
  if (!status.ok()) std::fprintf(stderr, "one_product: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
