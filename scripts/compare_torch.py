#!/usr/bin/env python3
"""Trains the same small GPT-2 with PyTorch (bf16 autocast) and with megatrain, from the same weights on the same
batches, and compares the loss curves. Needs a GPU and torch, transformers.

    python3 scripts/compare_torch.py MEGATRAIN_BINARY [STEPS [TOKENS.bin HIDDEN LAYERS HEADS SEQ BATCH VOCAB LR]]

Without the rest: a 4.8M-parameter character model on data/sherlock.txt.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import GPT2LMHeadModel

binary, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
given = sys.argv[3:]
hidden, layers, heads, seq, batch, vocab = map(int, given[1:7]) if given else (256, 6, 4, 128, 16, 0)
lr = float(given[7]) if given else 1e-3
root = pathlib.Path(__file__).resolve().parent.parent
work = pathlib.Path(tempfile.mkdtemp())


def megatrain(*args):
    subprocess.run([binary, *map(str, args)], check=True, stdout=subprocess.DEVNULL)


def train(out, *extra):
    config = work / "c.yaml"
    config.write_text("")
    options = dict(train_data=data, vocab_size=vocab, hidden_size=hidden, num_layers=layers, num_heads=heads, sequence_length=seq,
                   batch_size=batch, sampling="sequential", learning_rate=lr, lr_schedule="constant", log_interval=1)
    config.write_text("".join(f"{k}: {v}\n" for k, v in options.items()))
    megatrain("train", config, "--out-dir", work / out, *extra)
    return [json.loads(line)["loss"] for line in (work / out / "metrics.jsonl").read_text().splitlines()]


if given:
    data = pathlib.Path(given[0]).resolve()
else:
    megatrain("prepare", root / "data/sherlock.txt", "--out", work / "data", "--tokenizer", "char", "--val-fraction", 0)
    data = work / "data/train.bin"
train("init", "--num-steps", 0)
ours = train("ours", "--num-steps", steps, "--init-from", work / "init/model", "--device", "cuda", "--compute", "bf16")
ours_fp32 = train("ours32", "--num-steps", steps, "--init-from", work / "init/model", "--device", "cuda", "--compute", "fp32")

tokens = np.fromfile(data, dtype=np.uint16).astype(np.int64)
windows = (len(tokens) - 1) // seq
torch.manual_seed(0)


def torch_run(autocast):
    model = GPT2LMHeadModel.from_pretrained(work / "init/model").cuda().train()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=lr,
                            betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(steps):
        at = [((step * batch + i) % windows) * seq for i in range(batch)]
        x = torch.tensor(np.stack([tokens[a:a + seq] for a in at])).cuda()
        y = torch.tensor(np.stack([tokens[a + 1:a + seq + 1] for a in at])).cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), y.view(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


theirs, theirs_fp32 = torch_run(True), torch_run(False)
torch.backends.cuda.matmul.allow_tf32 = False
curves = {"megatrain bf16": ours, "megatrain fp32": ours_fp32, "torch bf16 autocast": theirs, "torch fp32": theirs_fp32}
print(f"{'step':>6}" + "".join(f"{name:>22}" for name in curves))
for step in sorted({s for s in [0, 1, 2, 4, 9, 24, 49, 99, 149, steps - 1] if s < steps}):
    print(f"{step + 1:>6}" + "".join(f"{c[step]:>22.4f}" for c in curves.values()))
diff = lambda a, b: np.abs(np.array(a) - np.array(b))
print(f"mean |difference| over {steps} steps: ours bf16 - torch bf16 {diff(ours, theirs).mean():.5f}, torch bf16 - torch fp32 "
      f"{diff(theirs, theirs_fp32).mean():.5f}, ours bf16 - ours fp32 {diff(ours, ours_fp32).mean():.5f}, ours fp32 - torch fp32 {diff(ours_fp32, theirs_fp32).mean():.6f}")
