// The one call that differs between oneDNN 2.6 and 3.
#pragma once

#include "oneapi/dnnl/dnnl.hpp"

namespace agmm {

// c = a * b. Throws dnnl::error if oneDNN has no such matmul.
inline dnnl::matmul::primitive_desc DescribeMatmul(const dnnl::engine& engine,
                                                   const dnnl::memory::desc& a,
                                                   const dnnl::memory::desc& b,
                                                   const dnnl::memory::desc& c,
                                                   const dnnl::primitive_attr& attributes = {}) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, c, attributes);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine);
#endif
}

}  // namespace agmm
