#!/usr/bin/env python3
"""Draws a megatrain --trace file as a PNG: scripts/plot_trace.py trace.json out.png [TITLE]  (needs matplotlib)"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

events = json.load(open(sys.argv[1]))["traceEvents"]
lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
spans = [e for e in events if e["ph"] == "X"]
colours = {"optimize": "#b05fc0", "load_weights": "#4c8bd6", "load_tokens": "#9fc4ee", "load_gradient": "#2e5f9e",
           "embed_forward": "#8fcf8f", "block_forward": "#4caf50", "head_loss": "#e0a030", "zero_gradient": "#cccccc",
           "block_backward": "#d9534f", "embed_backward": "#eba6a3", "add_gradient": "#999999", "gradient_norm": "#777777",
           "offload_gradient": "#d98a3d", "read_back": "#f2cfae"}
figure, axis = plt.subplots(figsize=(14, 3.4))
seen = set()
for e in spans:
    kind = e["name"].split(" ")[0]
    axis.barh(-e["tid"], e["dur"] / 1e6, left=e["ts"] / 1e6, height=0.8, color=colours.get(kind, "black"), linewidth=0,
              label=None if kind in seen else kind)
    seen.add(kind)
axis.set_yticks([-t for t in lanes], list(lanes.values()))
axis.set_xlabel("seconds")
axis.set_title(sys.argv[3] if len(sys.argv) > 3 else "")
axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncol=7, fontsize=8, frameon=False)
figure.savefig(sys.argv[2], dpi=110, bbox_inches="tight")
