#include "extension/transfers.h"

#include <stop_token>
#include <utility>

#include "extension/transfer.h"

namespace nb = nanobind;

namespace agmm::python {

nb::tuple Put(const Connected& self, const std::string& name, const TensorSpec& spec,
              uintptr_t pointer, int64_t size_bytes, nb::object progress, int64_t timeout_ms,
              std::stop_source stop) {
  Transfer transfer(nb::none(), std::move(progress), std::move(stop));
  return transfer.Run(timeout_ms, [&, client = self.client()](const TransferOptions& options) {
    return client->Put(name, spec, reinterpret_cast<const void*>(pointer), size_bytes, options);
  });
}

nb::tuple Get(const Connected& self, const std::string& name, uintptr_t pointer, int64_t size_bytes,
              nb::object progress, int64_t timeout_ms, std::stop_source stop) {
  Transfer transfer(nb::none(), std::move(progress), std::move(stop));
  return transfer.Run(timeout_ms, [&, client = self.client()](const TransferOptions& options) {
    return client->Get(name, reinterpret_cast<void*>(pointer), size_bytes, options);
  });
}

nb::tuple PutBlocks(const Connected& self, const std::string& name, const TensorSpec& spec,
                    nb::callable block, nb::object progress, int64_t timeout_ms,
                    std::stop_source stop) {
  Transfer transfer(std::move(block), std::move(progress), std::move(stop));
  const Reader reader = [&](int64_t offset_bytes, std::byte* into, int64_t size) {
    return transfer.FillBlock(offset_bytes, into, size);
  };
  return transfer.Run(timeout_ms, [&, client = self.client()](const TransferOptions& options) {
    return client->Put(name, spec, reader, options);
  });
}

nb::tuple GetBlocks(const Connected& self, const std::string& name, nb::callable block,
                    nb::object progress, int64_t timeout_ms, std::stop_source stop) {
  Transfer transfer(std::move(block), std::move(progress), std::move(stop));
  const Writer writer = [&](int64_t offset_bytes, const std::byte* from, int64_t size) {
    return transfer.ReadBlock(offset_bytes, from, size);
  };
  return transfer.Run(timeout_ms, [&, client = self.client()](const TransferOptions& options) {
    return client->Get(name, writer, options);
  });
}

}  // namespace agmm::python
