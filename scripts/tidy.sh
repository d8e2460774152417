#!/usr/bin/env bash
# clang-tidy over src/ with the cpu preset's compile commands: scripts/tidy.sh [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || mapfile -t files < <(git ls-files 'src/*.cpp' | grep -v kernels_isa)
printf '%s\n' "${@:-${files[@]}}" | xargs -P "$(nproc)" -n 2 clang-tidy -p build/cpu --quiet 2>/dev/null
