#!/usr/bin/env python3
"""Round trips with transformers: for each family a small random model is saved by transformers (in shards), passed
through `megatrain train` and read by transformers again.

    /tmp/venv/bin/python scripts/compare_transformers.py build/cpu/megatrain

Zero steps: every tensor's bits, names, dtypes and shards are the same, and so are the logits. Ten steps: the loss that
`megatrain eval` gives the trained export equals the loss that transformers computes from it.
"""
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

BINARY = sys.argv[1]
SIZES = dict(vocab_size=300, hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=128)
CONFIGS = {
    "gpt2 tied fp32": (GPT2Config(vocab_size=300, n_positions=128, n_embd=96, n_layer=3, n_head=6, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                  bos_token_id=0, eos_token_id=0), torch.float32),
    "llama 3 rope, tied, bf16": (LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)), torch.bfloat16),
    "llama untied, biases, fp16": (LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True), torch.float16),
    "qwen2 untied bf16": (Qwen2Config(**SIZES), torch.bfloat16),
    "qwen2 yarn, windows, fp32": (Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=24, max_window_layers=1, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32)), torch.float32),
    "qwen3 tied bf16": (Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True), torch.bfloat16),
    "mistral window bf16": (MistralConfig(**SIZES, sliding_window=40), torch.bfloat16),
}


def tensors(directory):
    out = {}
    for path in sorted(directory.glob("*.safetensors")):
        for name, t in load_file(path).items():
            out[name] = (path.name, t)
    return out


def windows_loss(model, ids, t, stride):
    total, count, done = 0.0, len(ids) - 1, 0
    with torch.no_grad():
        for start in range(0, count, stride):
            n = min(t, count - start)
            logits = model(torch.tensor(ids[start:start + n])[None]).logits[0].float()
            targets = torch.tensor(ids[start + 1:start + n + 1])
            targets[:done - start] = -100
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            done = start + n
            if done == count:
                return total / count


def run(*args):
    r = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{args}: {r.stdout[-500:]} {r.stderr}")
    return r.stdout


def main():
    work = pathlib.Path(tempfile.mkdtemp())
    rng = numpy.random.default_rng(1)
    data = (rng.integers(0, 30, 20000) * rng.integers(1, 10, 20000)).astype(numpy.uint16)
    data.tofile(work / "train.bin")
    data[:1000].tofile(work / "val.bin")
    bad = 0
    for name, (config, dtype) in CONFIGS.items():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        source = work / "source"
        model.save_pretrained(source, max_shard_size="250KB")
        common = ["train", CONFIG, "--init-from", source, "--train-data", work / "train.bin", "--device", "cpu"]
        run(*common, "--num-steps", 0, "--out-dir", work / "same")
        before, after = tensors(source), tensors(work / "same" / "model")
        same = before.keys() == after.keys() and all(
            before[k][0] == after[k][0] and before[k][1].dtype == after[k][1].dtype and torch.equal(before[k][1], after[k][1]) for k in before)
        probe = torch.tensor(data[:64].astype(numpy.int64))[None]
        again = AutoModelForCausalLM.from_pretrained(work / "same" / "model", dtype=torch.float32).eval()
        first = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
        logits = (again(probe).logits - first(probe).logits).abs().max().item()
        run(*common, "--num-steps", 10, "--out-dir", work / "trained")
        def ours_at(stride):
            out = run("eval", work / "trained" / "model", work / "val.bin", "--sequence-length", 64, "--stride", stride, "--device", "cpu")
            return float(re.search(r"loss ([0-9.]+)", out).group(1))
        trained = AutoModelForCausalLM.from_pretrained(work / "trained" / "model", dtype=torch.float32).eval()
        ids = data[:1000].astype(numpy.int64)
        ours, theirs, untrained = ours_at(64), windows_loss(trained, ids, 64, 64), windows_loss(first, ids, 64, 64)
        strided, strided_theirs = ours_at(24), windows_loss(trained, ids, 64, 24)
        close = abs(ours - theirs) < 1e-4 * theirs + 1e-4 and abs(strided - strided_theirs) < 1e-4 * theirs + 1e-4
        ok = same and logits == 0 and close and theirs < untrained
        bad += not ok
        print(f"{name:30} {len({v[0] for v in after.values()})} shards, {'bit-equal' if same else 'DIFFERENT'}, logits differ by {logits:g}; "
              f"after ten steps: ours {ours:.4f}, transformers {theirs:.4f} (stride 24: {strided:.4f}, {strided_theirs:.4f}; before {untrained:.4f})  {'ok' if ok else 'BAD'}")
        for d in ("source", "same", "trained"):
            subprocess.run(["rm", "-rf", str(work / d)])
    sys.exit(bad > 0)


CONFIG = pathlib.Path(tempfile.mkdtemp()) / "c.yaml"
CONFIG.write_text("sequence_length: 64\nbatch_size: 8\nlearning_rate: 3e-3\nweight_decay: 0\nsave_dtype: auto\nlr_schedule: constant\n")
main()
