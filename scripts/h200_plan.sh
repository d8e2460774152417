#!/usr/bin/env bash
# The plan against the run on a GPU machine: scripts/h200_plan.sh DIR MACHINE_FILE ROW...; DIR holds the binaries of the
# cuda build. Each row is a configuration of the table below, run in a process of its own; docs/benchmarks.md has the table.
cd "$(dirname "$0")/.."
dir=$1 machine=$2
shift 2
. scripts/h200_env.sh
declare -A rows=(
  # family hidden layers heads kv mlp tokens T vocab clip gpu ram disk steps
  [a1]="gpt2 768 12 12 12 3072 4096 1024 50257 1 auto auto 0 20"
  [a2]="gpt2 768 12 12 12 3072 65536 1024 50257 1 auto auto 0 12"
  [a3]="gpt2 768 12 12 12 3072 262144 1024 50257 1 auto auto 0 8"
  [a4]="gpt2 768 12 12 12 3072 65536 1024 50257 1 3GiB auto 0 8"
  [b1]="gpt2 2048 24 16 16 8192 4096 2048 50257 1 auto auto 0 10"
  [b2]="gpt2 2048 24 16 16 8192 65536 2048 50257 1 auto auto 0 8"
  [b3]="gpt2 2048 24 16 16 8192 65536 2048 50257 1 8GiB auto 0 8"
  [b4]="gpt2 2048 24 16 16 8192 262144 2048 50257 1 24GiB auto 0 5"
  [b5]="gpt2 2048 24 16 16 8192 16384 2048 50257 1 6GiB auto 0 8"
  [c1]="qwen2 2048 36 16 2 11008 65536 2048 151936 1 auto auto 0 6"
  [c2]="qwen2 2048 36 16 2 11008 65536 2048 151936 1 24GiB auto 0 6"
  [c3]="qwen2 2048 36 16 2 11008 16384 2048 151936 0 16GiB auto 0 6"
  [d1]="gpt2 4096 24 32 32 16384 65536 2048 50257 1 24GiB auto 0 5"
  [d2]="gpt2 4096 24 32 32 16384 262144 2048 50257 1 auto auto 0 4"
  [e1]="qwen2 3584 28 28 4 18944 65536 2048 152064 1 auto auto 0 6"
  [e2]="qwen2 3584 28 28 4 18944 16384 2048 152064 1 auto auto 0 6"
  [e3]="qwen2 3584 28 28 4 18944 65536 2048 152064 0 24GiB auto 0 5"
  [e4]="qwen2 3584 28 28 4 18944 262144 2048 152064 1 auto auto 0 4"
  [f1]="gpt2 5120 40 40 40 20480 65536 2048 50257 1 auto auto 0 6"
  [f2]="gpt2 5120 40 40 40 20480 262144 2048 50257 1 auto auto 0 4"
  # states beyond a RAM cap, on the disk
  [g1]="gpt2 2048 24 16 16 8192 65536 2048 50257 1 8GiB 8GiB auto 5"
  [g2]="qwen2 2048 36 16 2 11008 65536 2048 151936 1 16GiB 20GiB auto 4"
  # true width, as many layers as fit: time a layer
  [h4]="gpt2 8192 4 64 64 32768 65536 2048 50257 1 auto auto 0 4"
  [h8]="gpt2 8192 8 64 64 32768 65536 2048 50257 1 auto auto 0 4"
  [h14]="gpt2 8192 14 64 64 32768 65536 2048 50257 1 auto auto 0 4"
  [i2]="gpt2 12288 2 96 96 49152 65536 2048 50257 1 auto auto 0 4"
  [i4]="gpt2 12288 4 96 96 49152 65536 2048 50257 1 auto auto 0 4"
  [i6]="gpt2 12288 6 96 96 49152 65536 2048 50257 1 auto auto 0 4"
)
for row in "$@"; do
  name=${row%%:*}
  detail=
  [ "$name" = "$row" ] || detail=detail
  echo "--- $name ($(date +%T))"
  # shellcheck disable=SC2086
  timeout 200 "$dir/bench_plan" "$machine" ${rows[$name]} $detail 2>&1 || echo "ended with $?"
done
