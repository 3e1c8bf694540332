#include <utility>

#include "daemon/tensor/catalog_impl.h"

namespace agmm::catalog {

void CatalogImpl::FillTensor(const CallContext&, const v1::FillTensorRequest&,
                             Reply<v1::Tensor> reply) {
  reply(absl::UnimplementedError("filling is not there yet"));
}

void CatalogImpl::OnFilled(int, const v1::TensorFilled&) {}

}  // namespace agmm::catalog
