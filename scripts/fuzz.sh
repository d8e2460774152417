#!/usr/bin/env bash
# Fuzzes the readers of untrusted files: scripts/fuzz.sh [SECONDS each, default 600] [NAME...]
# Findings land in build/fuzz/found; new inputs stay in build/fuzz/work/NAME (scripts/fuzz.sh keeps what is small in
# tests/fuzz/corpus only by hand).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
names=${*:-"safetensors config tokenizer chat_template"}
cmake --preset fuzz >/dev/null
for name in $names; do cmake --build build/fuzz --target "fuzz_$name"; done
mkdir -p build/fuzz/found
fuzz() {
  local corpus=tests/fuzz/corpus/${1#chat_}
  mkdir -p "build/fuzz/work/$1"
  "build/fuzz/tests/fuzz_$1" "build/fuzz/work/$1" "$corpus" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
    -max_len=20000 -artifact_prefix="build/fuzz/found/$1-" >"build/fuzz/$1.log" 2>&1 || echo "$1: failed, see build/fuzz/$1.log"
  tail -1 "build/fuzz/$1.log"
}
export -f fuzz
export seconds
# shellcheck disable=SC2086
printf '%s\n' $names | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
