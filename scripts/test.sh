#!/usr/bin/env bash
# Installs, builds and runs every test of the CPU build.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh cpu
ctest --preset cpu -j "$(nproc)" "$@"
