#!/usr/bin/env bash
# Second half of the GPU machine's work: scripts/h200_bench.sh DIR PART...; parts: bench torch sanitizer big cap
cd "$(dirname "$0")/.."
dir=$1
shift
. scripts/h200_env.sh
work=$(mktemp -d)
for part in "$@"; do
  echo "=== $part ($(date +%T))"
  case $part in
    bench) "$dir/bench_cuda" gpt2 768 12 12 12 3072 65536 1024 50257 1 gpt2 2048 24 16 16 8192 65536 2048 50257 1 gpt2 4096 24 32 32 16384 65536 2048 50257 1 qwen2 3584 22 28 4 18944 65536 2048 152064 1 2>&1 ;;
    torch) python3 scripts/compare_torch.py "$dir/megatrain" 200 2>&1 | grep -v -i warn | tail -14 ;;
    torch-large) python3 scripts/compare_torch.py "$dir/megatrain" 12 "$TOKENS" 2048 8 16 1024 8 50257 1e-4 2>&1 | grep -v -i -e warn -e Loading | tail -14 ;;
    sanitizer)
      for tool in memcheck racecheck; do
        echo "compute-sanitizer $tool:"
        MT_TEST_DEVICE=cuda compute-sanitizer --tool $tool "$dir/test_parity" --gtest_brief=1 --gtest_filter='*TenAdamWSteps/1*' 2>&1 | tail -4
        compute-sanitizer --tool $tool "$dir/test_cuda_ops" --gtest_brief=1 --gtest_filter='*LayerNorm*:*Embedding*:*Elementwise*:*Attention*' >"$work/$tool" 2>&1
        grep -E "in kernel|hazard|Error:|Invalid" "$work/$tool" | grep -oE "(void )?[A-Za-z_:0-9]+(<|\()[^,<(]*" | sort | uniq -c | sort -rn | head -8
        tail -2 "$work/$tool"
      done ;;
    big) "$dir/megatrain" train configs/1p3b.yaml --train-data "$TOKENS" --val-data "" --num-steps 2 --out-dir "$work/big" --log-interval 1 --save-interval 0 2>&1 | grep -v "^  [ *] " ;;
    races)
      compute-sanitizer --tool racecheck "$dir/test_cuda_ops" --gtest_brief=1 --gtest_filter='*LayerNorm*:*Embedding*:*Elementwise*:*Attention*' >"$work/races" 2>&1
      grep -E "Race reported|race" "$work/races" | sed -E 's/0x[0-9a-f]+//g' | cut -c1-180 | sort | uniq -c | sort -rn | head -8
      tail -1 "$work/races" ;;
    trace)
      printf 'hidden_size: 4096\nnum_layers: 24\nnum_heads: 32\nvocab_size: 50257\nsequence_length: 2048\nbatch_size: 32\nnum_steps: 3\nlearning_rate: 2e-5\nlog_interval: 1\n' >"$work/trace.yaml"
      "$dir/megatrain" train "$work/trace.yaml" --train-data "$TOKENS" --residency stream --out-dir "$work/trace" --trace "$OUT/trace.json" --trace-steps 2 2>&1 | grep -v "^  [ *] "
      rm -rf "$work/trace" ;;
    cap)
      printf 'hidden_size: 4096\nnum_layers: 24\nnum_heads: 32\nvocab_size: 50257\ntie_word_embeddings: false\nsequence_length: 2048\nbatch_size: 32\nnum_steps: 4\nlearning_rate: 2e-5\nlog_interval: 1\n' >"$work/cap.yaml"
      timeout 200 "$dir/megatrain" train "$work/cap.yaml" --train-data "$TOKENS" --memory-limit 8GiB --out-dir "$work/cap" 2>&1 | grep -v "^  [ *] " ;;
  esac
done
