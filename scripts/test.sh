#!/usr/bin/env bash
# Installs, builds and runs every test of the CPU build.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/setup_parquet.sh || echo "test: built without Parquet" >&2
scripts/build.sh cpu
ctest --preset cpu -j "$(nproc)" "$@"
