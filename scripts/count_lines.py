#!/usr/bin/env python3
"""Counts the core trainer's lines (no blanks, no comments) per directory, and names functions over 60 lines."""
import pathlib
import re
import sys

LIMIT = 8000
ROOT = pathlib.Path(__file__).resolve().parent.parent / "src"
CORE = ["core", "device", "ops", "model", "store", "schedule", "engine", "optim"]
BESIDE = ["data", "io", "checkpoint", "cli"]


def code_lines(path):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), path.read_text(), flags=re.S)
    return [line for line in (re.sub(r"//.*", "", raw).strip() for raw in text.split("\n")) if line]


def long_functions(path, limit=60):
    """Brace matching: a block whose opening line looks like a function's and that spans more than `limit` lines."""
    lines, stack, found = path.read_text().split("\n"), [], []
    for number, raw in enumerate(lines, 1):
        line = re.sub(r'//.*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', "", raw)
        for ch in line:
            if ch == "{":
                head = " ".join(lines[max(0, number - 4):number])
                is_function = bool(re.search(r"\)\s*(const|override|noexcept|mutable|->\s*[\w:<>]+|\s)*\{?\s*$", re.sub(r"//.*", "", raw).rstrip("{ ") + " {"))
                stack.append((number, is_function and not re.search(r"\b(if|for|while|switch|namespace|class|struct)\b", raw), head))
            elif ch == "}" and stack:
                start, is_function, _ = stack.pop()
                if is_function and number - start + 1 > limit:
                    found.append(f"{path.relative_to(ROOT)}:{start}: {number - start + 1} lines")
    return found


total, total_cuda, bad = 0, 0, []
for group in (CORE, BESIDE):
    for name in group:
        files = [p for p in sorted((ROOT / name).rglob("*")) if p.suffix in {".cpp", ".h", ".inc", ".cu", ".cuh"}]
        bad += [f for p in files for f in long_functions(p)]
        cuda = [p for p in files if "cuda" in p.parts]
        total_cuda += sum(len(code_lines(p)) for p in cuda)
        count = sum(len(code_lines(p)) for p in files if p not in cuda)
        total += count if group is CORE else 0
        print(f"{name:10} {count:6}")
    if group is CORE:
        print(f"{'core':10} {total:6}   (limit {LIMIT}, without the CUDA device)")
        print(f"{'cuda':10} {total_cuda:6}")
print("functions over 60 lines:", *(bad or ["none"]))
sys.exit(1 if bad or total > LIMIT else 0)
