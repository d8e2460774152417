#!/usr/bin/env python3
"""Which rows `megatrain prepare` takes for validation, against what nanoGPT's prepare.py takes by the datasets package:
   compare_split.py MEGATRAIN   (needs: pip install datasets)"""
import json, subprocess, sys, tempfile
import numpy as np
from datasets import Dataset


def documents(path):
    """The documents of a .mtbin of bytes (src/data/token_file.h)."""
    raw = open(path, "rb").read()
    width = int.from_bytes(raw[12:16], "little")
    tokens, count = (int.from_bytes(raw[a:a + 8], "little") for a in (16, 24))
    ids = np.frombuffer(raw, np.uint16 if width == 2 else np.uint32, tokens, 64).astype(np.uint8)
    starts = np.frombuffer(raw, np.uint64, count + 1, 64 + (tokens * width + 7) // 8 * 8).astype(int)
    return [ids[a:b].tobytes().decode() for a, b in zip(starts, starts[1:])]


differ = 0
for rows, fraction in [(20000, 0.0005), (8013, 0.0005), (8014, 0.001), (100003, 0.0005)]:
    texts = [f"document {i}" for i in range(rows)]
    want = Dataset.from_dict({"text": texts}).train_test_split(test_size=fraction, seed=2357, shuffle=True)["test"]["text"]
    with tempfile.TemporaryDirectory() as d:
        with open(f"{d}/t.jsonl", "w") as f:
            f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
        subprocess.run([sys.argv[1], "prepare", f"{d}/t.jsonl", "-o", f"{d}/out", "--tokenizer", "byte", "--format", "mtbin",
                        "--val-fraction", str(fraction)], check=True, capture_output=True)
        got = documents(f"{d}/out/val.mtbin")
    same = sorted(want) == sorted(got)
    differ += not same
    print(f"{rows} rows, {fraction}: {len(want)} for validation, {'the same' if same else 'OTHERS'}")
sys.exit(differ > 0)
