#!/usr/bin/env bash
# chaos.sh MINUTES [SEED]: kills, pauses and cuts off the daemons of a world under load for this
# time, and compares every result. As root, after tests/run.sh has built build-test.
# AGMM_CHAOS_FAULTS="pause,kill" chooses the faults.
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ ${1:-} =~ ^[0-9]+$ ]] || { echo "usage: chaos.sh MINUTES [SEED]" >&2; exit 2; }
AGMM_CHAOS_SECONDS=$((60 * $1)) AGMM_SEED=${2:-1} exec build-test/bin/fault_test --gtest_filter='Chaos.*'
