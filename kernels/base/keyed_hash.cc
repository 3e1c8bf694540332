#include "kernels/base/keyed_hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdint>
#include <cstdlib>

namespace agmm {

std::string KeyedHash(absl::string_view key, std::initializer_list<absl::string_view> parts) {
  std::string text;
  for (absl::string_view part : parts) {
    const uint64_t size = part.size();
    text.append(reinterpret_cast<const char*>(&size), sizeof(size));
    text.append(part.data(), part.size());
  }
  std::string hash(kKeyedHashBytes, '\0');
  unsigned size = 0;
  // Fails only without memory; an uninitialized hash must never be used.
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(hash.data()), &size) == nullptr ||
      size != hash.size())
    std::abort();
  return hash;
}

bool SameHash(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace agmm
