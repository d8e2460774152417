#!/usr/bin/env python3
"""Writes docs/scaling.md: `megatrain plan` for gigaGPT's and MegaTrain's sizes on the machines of configs/machines.
scripts/make_scaling.py [BINARY]; the CPU build will do, nothing is trained."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/cpu/megatrain"
MACHINES = ["rtx3090", "rtx4090", "a100-80gb", "h200-1.5tb", "gh200"]
TOKENS = 65536


def qwen(hidden, layers, heads, kv, mlp, vocab=152064):
    return dict(family="qwen2", vocab_size=vocab, hidden_size=hidden, num_layers=layers, num_heads=heads, num_kv_heads=kv,
                intermediate_size=mlp, tie_word_embeddings=False)


MODELS = {
    "gigaGPT 111M": "111m.yaml", "gigaGPT 1.3B": "1p3b.yaml", "gigaGPT 13B": "13b.yaml", "gigaGPT 70B": "70b.yaml",
    "gigaGPT 175B": "175b.yaml",
    "7B (Qwen2.5)": qwen(3584, 28, 28, 4, 18944), "14B (Qwen2.5)": qwen(5120, 48, 40, 8, 13824),
    "32B (Qwen2.5)": qwen(5120, 64, 40, 8, 27648), "72B (Qwen2.5)": qwen(8192, 80, 64, 8, 29568),
    # MegaTrain's 120B is a mixture; this is a dense decoder of that size, which is harder
    "120B (dense)": qwen(10240, 90, 80, 8, 36864),
}


def plan(model, machine, scratch):
    if isinstance(model, str):
        config = ROOT / "configs" / model
    else:
        config = scratch / "model.yaml"
        config.write_text("".join(f"{k}: {str(v).lower() if isinstance(v, bool) else v}\n" for k, v in model.items()))
    r = subprocess.run([BINARY, "plan", config, "--json", "--machine", ROOT / f"configs/machines/{machine}.yaml",
                        "--sequence-length", "2048", "--batch-size", str(TOKENS // 2048)], capture_output=True, text=True)
    return json.loads(r.stdout) if r.returncode == 0 else r.stderr.strip()


def cell(p):
    if isinstance(p, str):
        change = p.rsplit("; ", 1)[-1]
        return f"does not fit: {change}"
    e, gib = p["predicted"], {k: v["bytes"] / 2**30 for k, v in p["memory"].items()}
    where = "/".join(f"{gib[k]:.0f}" for k in ("device", "host", "disk"))
    return f"{e['tokens_per_second']:,.0f} tok/s, {100 * e['mfu']:.0f}%, {e['bound_by']}; {where}"


def main():
    names = [json.loads(json.dumps((ROOT / f"configs/machines/{m}.yaml").read_text())).split("name: ")[1].split("\n")[0]
             for m in MACHINES]
    out = ["# Scaling", "",
           "What `megatrain plan` says for one GPU, made by `scripts/make_scaling.py` from the profiles in `configs/machines/`.",
           f"{TOKENS:,} tokens a step in sequences of 2,048, clipping on, no memory option. **Predictions, not measurements**: the",
           "simulator is within 7% of the whole steps measured on the H200 so far, all streamed and recomputed (docs/benchmarks.md,",
           "\"The plan against the run\"); plans that save activations or keep states on the GPU have not been timed yet, and the",
           "other machines' profiles are datasheet rates times what the H200 reaches of its own.", "",
           "A cell: tokens a second, share of the machine's own matrix rate (model FLOPs, no recompute counted), what bounds it;",
           "GiB on the device / in host memory / on disk.", "",
           "| model | " + " | ".join(names) + " |", "|---" * (len(MACHINES) + 1) + "|"]
    with tempfile.TemporaryDirectory() as d:
        for name, model in MODELS.items():
            cells = [cell(plan(model, m, pathlib.Path(d))) for m in MACHINES]
            print(name, *cells, sep="\n  ")
            out.append(f"| {name} | " + " | ".join(cells) + " |")
    out += ["", "One table's row in full: `megatrain plan configs/70b.yaml --batch-size 32 --machine configs/machines/h200-1.5tb.yaml`;",
            "`--timeline step.html` draws the step, `--json` has every figure."]
    (ROOT / "docs/scaling.md").write_text("\n".join(out) + "\n")


main()
