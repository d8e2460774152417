#!/usr/bin/env python3
"""Speed and ids of GPT-2's BPE against tiktoken on one core, in one run, alternating.

compare_tiktoken.py TOKENIZER_DIR TEXT [BENCH]   (BENCH: build/release/bench/bench_tokenizer)
TOKENIZER_DIR holds GPT-2's vocab.json and merges.txt. tiktoken gets the text in documents of about 100 KB,
which it likes better than one of many MB. Needs tiktoken and numpy.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import tiktoken


def gpt2_encoding(directory):
    """tiktoken's gpt2 from the files (its own download needs the network)."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    chars = {chr(b): b for b in printable}
    chars.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
    vocab = json.loads((directory / "vocab.json").read_text())
    ranks = {bytes(chars[c] for c in token): i for token, i in vocab.items() if token != "<|endoftext|>"}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": vocab["<|endoftext|>"]})


def main():
    directory, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    bench = sys.argv[3] if len(sys.argv) > 3 else "build/release/bench/bench_tokenizer"
    encoding = gpt2_encoding(directory)
    whole = text.read_bytes().decode()
    size = len(whole.encode())
    documents, at = [], 0
    while at < len(whole):
        cut = whole.find(" ", at + 100_000)
        cut = len(whole) if cut < 0 else cut
        documents.append(whole[at:cut])
        at = cut
    ours, theirs, same = [], [], None
    for _ in range(3):
        with tempfile.NamedTemporaryFile() as ids:
            out = subprocess.run([bench, directory, text, ids.name], check=True, capture_output=True, text=True).stdout
            ours.append(float(out.split(",")[1].split()[0]))
            if same is None:
                mine = numpy.fromfile(ids.name, dtype=numpy.int32)
                same = numpy.array_equal(mine, numpy.array(encoding.encode_ordinary(whole), dtype=numpy.int32))
        start = time.perf_counter()
        for d in documents:
            encoding.encode_ordinary(d)
        theirs.append(size / 1e6 / (time.perf_counter() - start))
    print(f"{size / 1e6:.0f} MB: ids {'equal' if same else 'DIFFER'}; megatrain {max(ours):.1f} MB/s "
          f"(3 runs: {', '.join(f'{x:.1f}' for x in ours)}), tiktoken {max(theirs):.1f} MB/s "
          f"({', '.join(f'{x:.1f}' for x in theirs)}), ratio {max(ours) / max(theirs):.1f}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
