#!/usr/bin/env python3
"""Makes tests/golden/*.safetensors from PyTorch/transformers in fp32 (run in a venv outside the repository).

Each file holds a tiny random model: its config.json, its weights under their Hugging Face names, one batch, and
what PyTorch says about it: logits, loss, every gradient, and losses, gradient norms and weights over ten AdamW
steps with clipping, a learning-rate schedule and weight decay. The tests load these and need no Python.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers safetensors
    /tmp/venv/bin/python scripts/make_goldens.py [NAME...]
"""
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
BATCH, SEQ, VOCAB, POSITIONS = 4, 20, 61, 24
STEPS, CLIP, DECAY, BETAS, EPS, LR, WARMUP = 10, 0.7, 0.1, (0.9, 0.95), 1e-8, 3e-3, 3


def nanogpt_lr(step):
    """Warm-up, then a cosine to a tenth over the remaining steps (nanoGPT's get_lr)."""
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    ratio = min(1.0, (step - WARMUP) / (STEPS - WARMUP))
    return 0.1 * LR + 0.5 * (1 + math.cos(math.pi * ratio)) * 0.9 * LR


def gpt2(activation, tied, bias=True):
    config = GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=24, n_layer=3, n_head=3,
                        activation_function=activation, tie_word_embeddings=tied, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, layer_norm_epsilon=1e-5)
    if not bias:
        config.megatrain = {"bias": False}
    return config


def decoder(cls, **options):
    sizes = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                 num_key_value_heads=1, max_position_embeddings=POSITIONS, rms_norm_eps=1e-5)
    return cls(**{**sizes, **options})


CONFIGS = {
    "gpt2_erf_tied": lambda: gpt2("gelu", True),
    "gpt2_tanh_tied": lambda: gpt2("gelu_new", True),
    "gpt2_erf_untied_nobias": lambda: gpt2("gelu", False, False),
    "llama3_tied": lambda: decoder(LlamaConfig, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=12)),
    "llama_biases_linear": lambda: decoder(LlamaConfig, num_attention_heads=6, num_key_value_heads=6, attention_bias=True,
                                           mlp_bias=True, rope_parameters=dict(rope_type="linear", rope_theta=100.0,
                                                                               factor=2.0)),
    "llama_dynamic": lambda: decoder(LlamaConfig, head_dim=6, max_position_embeddings=12, rope_parameters=dict(
        rope_type="dynamic", rope_theta=100.0, factor=2.0)),
    "qwen2_windows_yarn": lambda: decoder(Qwen2Config, use_sliding_window=True, sliding_window=6, max_window_layers=1,
                                          rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=3.0,
                                                               original_max_position_embeddings=8)),
    "qwen3_tied": lambda: decoder(Qwen3Config, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                  tie_word_embeddings=True),
    "mistral_window": lambda: decoder(MistralConfig, num_attention_heads=6, num_key_value_heads=3, sliding_window=5),
}


def make_model(config, bias):
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():  # larger than the usual init, so that every gradient is far from zero
        for name, p in model.named_parameters():
            norm = ("ln" in name or "norm" in name) and "weight" in name
            p.copy_(torch.randn_like(p) * (0.08 if p.dim() > 1 else 0.1) + (1.0 if norm else 0.0))
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


def make(name):
    config = CONFIGS[name]()
    bias = "nobias" not in name
    model = make_model(config, bias)
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
    spec = dict(batch=BATCH, seq_len=SEQ, steps=STEPS, clip=CLIP, weight_decay=DECAY, learning_rate=LR, warmup=WARMUP)
    save_file({k: v.contiguous() for k, v in out.items()}, OUT / f"{name}.safetensors",
              metadata={"format": "pt", "spec": json.dumps(spec), "config": config.to_json_string(use_diff=False),
                        "torch": torch.__version__})
    print(name, "loss", losses[0], "->", losses[-1], "norms", norms[0], norms[-1])


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or CONFIGS:
        make(name)
