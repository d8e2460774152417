#!/usr/bin/env bash
# Runs the CUDA checks on a GPU machine: scripts/h200_check.sh DIR, DIR holding the binaries of the cuda build.
# Correctness first, then timings.
cd "$(dirname "$0")/.."
dir=$1
libs=$(python3 - <<'PY'
import glob, os, site, sys
roots = [p for p in sys.path if p.endswith("site-packages")] + site.getsitepackages()
print(":".join(sorted({os.path.dirname(f) for r in roots for f in glob.glob(r + "/nvidia/**/lib*.so*", recursive=True)})))
PY
)
export LD_LIBRARY_PATH="$libs:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
echo "--- ops"
"$dir/test_cuda_ops" --gtest_brief=1 2>&1 | tail -60
for device in cuda cuda-bf16; do
  echo "--- parity on $device"
  MT_TEST_DEVICE=$device "$dir/test_parity" --gtest_brief=1 2>&1 | tail -25
done
for device in cuda cuda-bf16; do
  echo "--- equalities on $device"
  MT_TEST_DEVICE=$device "$dir/test_equalities" --gtest_brief=1 2>&1 | cut -c1-300 | tail -25
done
