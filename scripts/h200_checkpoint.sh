#!/usr/bin/env bash
# Checkpoints on a GPU machine: scripts/h200_checkpoint.sh DIR TOKENS [LAYERS] [PLACE]. DIR holds megatrain, TOKENS is a .bin of
# GPT-2 ids. What dd writes to the same disk, then checkpoints of a Qwen2.5-7B-wide model while it trains; then a run
# that is killed and resumed must end in the bits of one that was not.
set -u
dir=$1 tokens=$2 layers=${3:-8} place=${4:-/tmp/ck}
rm -rf "$place" && mkdir -p "$place"
df -h "$place" | tail -1
echo "--- dd, 10 GiB"
dd if=/dev/zero of="$place/dd" bs=16M count=640 oflag=direct 2>&1 | tail -1
dd if=/dev/zero of="$place/dd" bs=16M count=640 conv=fsync 2>&1 | tail -1
rm "$place/dd"
start=$(date +%s.%N)
for i in 1 2 3 4; do dd if=/dev/zero of="$place/dd$i" bs=16M count=160 oflag=direct 2>/dev/null & done
wait
echo "4 at once, direct: $(python3 -c "import time; print(f'{10.737 / (time.time() - $start):.2f} GB/s')")"
rm -f "$place"/dd*
cat > "$place/big.yaml" <<EOF
family: llama
hidden_size: 3584
num_layers: $layers
num_heads: 28
num_kv_heads: 4
intermediate_size: 18944
vocab_size: 50304
tie_word_embeddings: false
sequence_length: 1024
batch_size: 32
num_steps: 14
checkpoint_interval: 6
keep_checkpoints: 1
log_interval: 1
save_dtype: bf16
train_data: $tokens
EOF
echo "--- training with checkpoints after steps 6 and 12, and at the end"
"$dir/megatrain" train "$place/big.yaml" --out-dir "$place/big" 2>&1 | grep -E "^step|checkpoint of|plan:|host memory|model:|megatrain:|not written|saved"
rm -rf "$place/big"
cat > "$place/small.yaml" <<EOF
hidden_size: 768
num_layers: 6
num_heads: 12
vocab_size: 50304
dropout: 0.1
sequence_length: 512
batch_size: 16
num_steps: 60
checkpoint_interval: 7
log_interval: 10
train_data: $tokens
EOF
echo "--- killed and resumed, bf16 on CUDA"
"$dir/megatrain" train "$place/small.yaml" --out-dir "$place/a" 2>&1 | grep -E "step 60|saved|megatrain:"
for i in 1 2 3; do
  "$dir/megatrain" train "$place/small.yaml" --out-dir "$place/b" --resume > "$place/log" 2>&1 &
  pid=$!
  sleep $((4 + 2 * i))
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  grep -E "resume:|checkpoint of" "$place/log" | tail -1
done
"$dir/megatrain" train "$place/small.yaml" --out-dir "$place/b" --resume --residency stream 2>&1 | grep -E "resume:|step 60|saved|megatrain:"
cmp "$place/a/model/model.safetensors" "$place/b/model/model.safetensors" && echo "the models are equal, byte for byte"
