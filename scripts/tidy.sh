#!/usr/bin/env bash
# clang-tidy with the cpu preset's compile commands: scripts/tidy.sh [PATH...]; default: all of src but the CUDA
# files, which that preset does not compile.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files "${@:-src}" | grep '\.cpp$' | grep -v -e kernels_isa -e /cuda/ | xargs -P "$(nproc)" -n 2 clang-tidy -p build/cpu --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null
