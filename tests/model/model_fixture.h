// One test per process, because an environment variable sets up the model once.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/scratch.h"

// EXPECT_CU(cu.cuInit(0))
#define EXPECT_CU(call) EXPECT_EQ(call, CUDA_SUCCESS)
#define ASSERT_CU(call) ASSERT_EQ(call, CUDA_SUCCESS)

// A model with a context of each GPU; GPU 0's is current. Releases everything that its functions
// made.
class ModelTest : public testing::Test, public GpuScratch {
 protected:
  // Starts the model with AGMM_MODEL=`options`.
  void Start(const std::string& options = "") {
    setenv("AGMM_MODEL", options.c_str(), 1);
    ASSERT_EQ(Open(AGMM_MODEL_FOLDER "/libcuda.so.1", 16), "");
  }

  void Failed(const std::string& call, CUresult result) override {
    ADD_FAILURE() << call << ": error " << result;
  }

  void TearDown() override { Close(); }
};
