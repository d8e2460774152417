#!/usr/bin/env python3
"""Makes tests/golden/*.safetensors from PyTorch/transformers in fp32 (run in a venv outside the repository).

Each file holds a tiny random GPT-2: its weights under their Hugging Face names, one batch, and what PyTorch
says about it: logits, loss, every gradient, and losses, gradient norms and weights over ten AdamW steps with
clipping, a learning-rate schedule and weight decay. The tests load these and need no Python.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers safetensors
    /tmp/venv/bin/python scripts/make_goldens.py
"""
import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
BATCH, SEQ, VOCAB, WIDTH, LAYERS, HEADS, POSITIONS = 4, 20, 61, 24, 3, 3, 24
STEPS, CLIP, DECAY, BETAS, EPS, LR, WARMUP = 10, 0.7, 0.1, (0.9, 0.95), 1e-8, 3e-3, 3


def nanogpt_lr(step):
    """Warm-up, then a cosine to a tenth over the remaining steps (nanoGPT's get_lr)."""
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    ratio = min(1.0, (step - WARMUP) / (STEPS - WARMUP))
    return 0.1 * LR + 0.5 * (1 + math.cos(math.pi * ratio)) * 0.9 * LR


def make_model(activation, tied, bias):
    config = GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                        activation_function=activation, tie_word_embeddings=tied, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, layer_norm_epsilon=1e-5)
    torch.manual_seed(1234)
    model = GPT2LMHeadModel(config).float().eval()
    with torch.no_grad():  # larger than GPT-2's init, so that every gradient is far from zero
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.08 if p.dim() > 1 else 0.1) + (1.0 if "ln" in name and "weight" in name else 0.0))
            if not bias and name.endswith("bias"):
                p.zero_()
    return model


def trainable(model, bias):
    """With bias off, the biases are zeros that never move: nanoGPT's model without them."""
    return {n: p for n, p in model.named_parameters() if bias or not n.endswith("bias")}


def loss_of(model, tokens, targets):
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)
    return logits, loss


def make(name, activation, tied, bias):
    model = make_model(activation, tied, bias)
    g = torch.Generator().manual_seed(99)
    data = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ + 1), generator=g)
    tokens, targets = data[:, :, :-1].contiguous(), data[:, :, 1:].clone()
    targets[:, 0, :5] = -1  # masked, as padding and prompts are
    targets[:, 2, 11:] = -1
    params = trainable(model, bias)
    out = {"weight." + n: p.detach().clone() for n, p in params.items()}
    logits, loss = loss_of(model, tokens[0], targets[0])
    loss.backward()
    out.update({"gradient." + n: p.grad.clone() for n, p in params.items()})
    out["logits"], out["loss"] = logits.detach().clone(), loss.detach().reshape(1)
    groups = [{"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False)
    losses, norms = [], []
    for step in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = nanogpt_lr(step)
        model.zero_grad(set_to_none=True)
        _, loss = loss_of(model, tokens[step], targets[step])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(params.values()), CLIP).item())
        losses.append(loss.item())
        opt.step()
    out.update({"after." + n: p.detach().clone() for n, p in params.items()})
    out["losses"], out["norms"] = torch.tensor(losses), torch.tensor(norms)
    out["tokens"], out["targets"] = tokens.int(), targets.int()
    spec = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS, positions=POSITIONS,
                activation=activation, tied=tied, bias=bias, batch=BATCH, seq_len=SEQ, steps=STEPS, clip=CLIP,
                weight_decay=DECAY, learning_rate=LR, warmup=WARMUP)
    save_file({k: v.contiguous() for k, v in out.items()}, OUT / f"{name}.safetensors",
              metadata={"format": "pt", "spec": json.dumps(spec), "torch": torch.__version__})
    print(name, "loss", losses[0], "->", losses[-1], "norms", norms[0], norms[-1])


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    make("gpt2_erf_tied", "gelu", True, True)
    make("gpt2_tanh_tied", "gelu_new", True, True)
    make("gpt2_erf_untied_nobias", "gelu", False, False)
