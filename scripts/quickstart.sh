#!/usr/bin/env bash
# From a fresh clone to a trained model: installs, builds, trains on a public-domain book, samples.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh cpu megatrain
megatrain=build/cpu/megatrain
$megatrain prepare data/sherlock.txt --out out/sherlock --tokenizer char
exec $megatrain train configs/quickstart.yaml "$@"
