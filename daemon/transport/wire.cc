#include "daemon/transport/wire.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "absl/status/status.h"

namespace agmm::wire {
namespace {

EVP_MAC* SipHash() {
  static EVP_MAC* const mac = EVP_MAC_fetch(nullptr, "SIPHASH", nullptr);
  return mac;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HeaderKey>> HeaderKey::Make(const std::array<uint8_t, 16>& key) {
  EVP_MAC* mac = SipHash();
  EVP_MAC_CTX* context = mac == nullptr ? nullptr : EVP_MAC_CTX_new(mac);
  if (context == nullptr) {
    return absl::FailedPreconditionError(
        "OpenSSL has no SIPHASH, which the check of headers needs; enable its default provider");
  }
  std::unique_ptr<HeaderKey> made(new HeaderKey(context, key));
  size_t size = sizeof(uint64_t);
  OSSL_PARAM params[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
                         OSSL_PARAM_construct_end()};
  uint64_t sum;
  if (EVP_MAC_CTX_set_params(context, params) != 1 || !made->Sum("", 0, &sum)) {
    return absl::FailedPreconditionError(
        "OpenSSL's SIPHASH does not produce 8-byte sums; update OpenSSL 3");
  }
  return made;
}

HeaderKey::~HeaderKey() { EVP_MAC_CTX_free(static_cast<EVP_MAC_CTX*>(context_)); }

bool HeaderKey::Sum(const void* data, size_t size, uint64_t* sum) const {
  auto* context = static_cast<EVP_MAC_CTX*>(context_);
  size_t written = 0;
  return EVP_MAC_init(context, key_.data(), key_.size(), nullptr) == 1 &&
         EVP_MAC_update(context, static_cast<const unsigned char*>(data), size) == 1 &&
         EVP_MAC_final(context, reinterpret_cast<unsigned char*>(sum), &written, sizeof(*sum)) ==
             1 &&
         written == sizeof(*sum);
}

}  // namespace agmm::wire
