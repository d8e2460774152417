#!/usr/bin/env python3
"""A Qwen2.5-7B-shaped model with random weights on the GPU machine: scripts/h200_qwen7b.py MEGATRAIN TOKENS [LAYERS]

transformers makes and saves it (bf16, shards) and computes the loss of the first step's batch in bf16; megatrain
imports it, trains ten steps (STEPS), exports it; transformers reads the export and computes its loss. Prints one table.
"""
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

binary, tokens_path = sys.argv[1], sys.argv[2]
layers = int(sys.argv[3]) if len(sys.argv) > 3 else 28
T, B, STEPS = 2048, 32, int(os.environ.get("STEPS", 10))
work = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))
config = Qwen2Config(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=layers, num_attention_heads=28,
                     num_key_value_heads=4, max_position_embeddings=32768, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1e6),
                     tie_word_embeddings=False)
data = numpy.fromfile(tokens_path, dtype=numpy.uint16).astype(numpy.int64)


def timed(what, f):
    start = time.time()
    result = f()
    print(f"{what}: {time.time() - start:.1f} s", flush=True)
    return result


def batch_loss(model):
    total = 0.0
    with torch.no_grad():
        for row in range(B):
            ids = torch.tensor(data[row * T:(row + 1) * T + 1], device="cuda")
            logits = model(ids[None, :-1]).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits, ids[1:]).item()
    return total / B


def free():
    torch.cuda.empty_cache()


torch.manual_seed(1)
torch.set_default_device("cuda")
model = timed("made", lambda: AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
torch.set_default_device("cpu")
timed("saved by transformers", lambda: model.save_pretrained(work / "source", max_shard_size="4GB"))
theirs = timed("loss by transformers", lambda: batch_loss(model))
parameters = sum(p.numel() for p in model.parameters())
del model
free()
(work / "source" / "meta.json").write_text('{"tokenizer": "byte", "vocab_size": 256}')
(work / "c.yaml").write_text(f"sequence_length: {T}\nbatch_size: {B}\nnum_steps: {STEPS}\nlearning_rate: 1e-5\nlr_schedule: constant\nweight_decay: 0\n"
                             "max_gradient_norm: 0\nlog_interval: 1\nsampling: sequential\n")
command = [binary, "train", work / "c.yaml", "--init-from", work / "source", "--train-data", tokens_path, "--out-dir", work / "out"]
out = timed("megatrain in all", lambda: subprocess.run(list(map(str, command)), capture_output=True, text=True))
for line in out.stdout.splitlines():
    if not line.startswith("  ") or "memory" in line or "B/param" in line:
        print(line[:190])
print(out.stderr[-800:])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
ours = float(re.search(r"step +1/\d+ +loss ([0-9.]+)", out.stdout).group(1))
print(f"{parameters / 1e9:.2f}B parameters; first loss: ours {ours:.4f}, transformers bf16 {theirs:.4f}, {100 * abs(ours / theirs - 1):.3f}% apart; "
      f"peak resident memory {peak:.1f} GiB")
exported = timed("export read by transformers", lambda: AutoModelForCausalLM.from_pretrained(work / "out" / "model", dtype=torch.bfloat16, device_map=None).to("cuda"))
print(f"loss of the export by transformers: {batch_loss(exported):.4f}; files {sorted(os.listdir(work / 'out' / 'model'))}", flush=True)
del exported
free()
for memory in ("auto", "8GiB"):  # resident, then streamed for every token
    n = 128 if memory == "auto" else 16
    generate = [binary, "generate", work / "out" / "model", "-p", "Hello there, ", "-n", n, "--temperature", 0, "--gpu-memory", memory, "--stats"]
    start = time.time()
    out = subprocess.run(list(map(str, generate)), capture_output=True)
    print(f"generate in {memory}: rc {out.returncode}, {len(out.stdout)} bytes, {time.time() - start:.1f} s in all; "
          + out.stderr.decode(errors="replace").strip().splitlines()[-1], flush=True)
