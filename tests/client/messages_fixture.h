// Messages in which every field has a distinct value, for tests of the output of agmmctl.
#pragma once

#include <string>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace agmm {

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

inline v1::Tensor SomeTensor() {
  return FromText<v1::Tensor>(R"pb(
    tensor_id: 9007199254740991
    name: "W"
    spec {
      rows: 4096
      cols: 512
      dtype: DTYPE_BF16
      sharding: "[K, N_x]"
      mesh {
        axes { name: "x" size: 4 }
        ranks: 4
        ranks: 5
        ranks: 6
        ranks: 7
      }
    }
    state: STATE_READY
    offset_bytes: 128
    shard_bytes: 1048576
    version: 7
    owner: "uid:1000"
    create_time { seconds: 1700000000 nanos: 250000000 }
  )pb");
}

inline v1::Job SomeJob() {
  return FromText<v1::Job>(R"pb(
    job_id: 12
    request_id: "r-1"
    state: STATE_SUCCEEDED
    spec: "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
    mesh {
      axes { name: "x" size: 2 }
      ranks: 0
      ranks: 1
    }
    tensor_ids: 1
    tensor_ids: 2
    tensor_ids: 3
    options { algorithm: "ring" chunk_count: 2 partials: DTYPE_F32 }
    explanation: "auto is ring"
    plan_hash: "0123456789abcdef"
    repeat_count: 3
    create_time { seconds: 1700000000 }
    start_time { seconds: 1700000000 nanos: 500000000 }
    end_time { seconds: 1700000001 }
    ranks {
      rank: 0
      node: 0
      start_unix_us: 1700000000500000
      epoch_start_unix_us: 1700000000501500
      epoch_us: 1500
      epoch_us: 1250.5
      steps { start_us: 1 end_us: 1000 }
    }
    ranks { rank: 1 node: 1 }
    events {
      number: 1
      state: STATE_QUEUED
      time { seconds: 1700000000 }
      message: "admitted"
    }
    events {
      number: 2
      state: STATE_RUNNING
      time { seconds: 1700000000 nanos: 500000000 }
    }
    events {
      number: 3
      state: STATE_SUCCEEDED
      time { seconds: 1700000001 }
    }
    owner: "uid:1000"
    generation: 2
    m: 64
    n: 32
    k: 16
    dtype: DTYPE_F32
    result_dtype: DTYPE_F32
    engine: "cpu: oneDNN 3.1"
    transport: "ucx tcp"
    figures {
      time_us: 1250.5
      gemm_us: 1000
      flop_count: 65536
      tflops: 0.5
      overlap: 0.75
      moved { path: "memory" bytes: 4096 }
      moved { path: "network" bytes: 1048576 }
    }
    timeout { seconds: 60 }
    schedule: "ring"
  )pb");
}

inline v1::GetStatusResponse SomeStatus() {
  return FromText<v1::GetStatusResponse>(R"pb(
    cluster: "demo"
    version: "0.1.0 (1a2b3c4d5e6f)"
    generation: 3
    ready: true
    config_hash: "abc"
    answering_node: 1
    nodes {
      index: 0
      name: "a"
      address: "127.0.0.1:7101"
      state: STATE_READY
      incarnation: "00112233445566778899aabbccddeeff"
      transport_endpoint: "127.0.0.1:41001"
      ip_addresses: "127.0.0.1"
      staging_bytes: 512
      plan_bytes: 1048576
      version: "0.1.0 (1a2b3c4d5e6f)"
      devices {
        rank: 0
        kind: "cpu"
        description: "CPU device of 1 thread, a processor with a long name, AVX-512, AMX"
        thread_count: 1
        heap_bytes: 1073741824000
        heap_free_bytes: 1073741823000
        heap_largest_free_bytes: 1073741822000
        tensor_bytes: 10
        held_bytes: 15
        workspace_bytes: 20
        packed_bytes: 30
        scratch_bytes: 40
        pack_count: 5
        allocation_count: 6
      }
    }
    nodes {
      index: 1
      name: "b"
      address: "b.example.org:7102"
      state: STATE_MISSING
      ip_addresses: "10.0.0.2"
      ip_addresses: "fd00::2"
    }
    metrics { name: "jobs_submitted_total" value: 4 }
    insecure: true
  )pb");
}

}  // namespace agmm
