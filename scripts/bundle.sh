#!/usr/bin/env bash
# Makes megatrain-cuda.tar.gz: the CUDA program with every non-CUDA library linked in, configs, licence and a
# starter. It runs on a machine with CUDA 13's runtime libraries, cuDNN 9 and glibc 2.36 or newer; nothing from
# Debian is needed there.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/setup_cuda.sh
scripts/build.sh cuda megatrain
stage=$(mktemp -d)/megatrain
mkdir -p "$stage"
cp build/cuda/megatrain LICENSE README.md "$stage"
cp -r configs "$stage"
strip "$stage/megatrain"
needed=$(ldd "$stage/megatrain" | grep -vE 'linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cublasLt|nvrtc|cudnn)\.so' || true)
[ -z "$needed" ] || { echo "bundle: unexpected libraries: $needed" >&2; exit 1; }
tar -C "$(dirname "$stage")" -czf build/megatrain-cuda.tar.gz megatrain
ls -l build/megatrain-cuda.tar.gz
