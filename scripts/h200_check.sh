#!/usr/bin/env bash
# Runs the CUDA checks on a GPU machine: scripts/h200_check.sh DIR, DIR holding the binaries of the cuda build.
# Correctness first, then timings.
cd "$(dirname "$0")/.."
dir=$1
. scripts/h200_env.sh
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
echo "--- ops"
"$dir/test_cuda_ops" --gtest_brief=1 2>&1 | tail -60
for device in cuda cuda-bf16; do
  echo "--- parity on $device"
  MT_TEST_DEVICE=$device "$dir/test_parity" --gtest_brief=1 2>&1 | tail -25
done
for device in cuda cuda-bf16; do
  echo "--- equalities on $device"
  for t in test_equalities test_homes test_packing test_checkpoint; do
    MT_TEST_DEVICE=$device "$dir/$t" --gtest_brief=1 2>&1 | cut -c1-300 | tail -25
  done
done
