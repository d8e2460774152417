#!/usr/bin/env python3
"""Compares our tokenizers with Hugging Face's `tokenizers` on a mixed text of more than 10 MB: English, code of this
Python's library, random words of many scripts, emoji sequences, combining marks and odd spaces.

    /tmp/venv/bin/python scripts/compare_tokenizers.py build/cpu/bench/bench_tokenizer [tokenizer.json ...]

Without files it trains one of each style on the spot (GPT-2's pattern, Llama 3's, Qwen's with NFC, and Llama 2's
SentencePiece form with byte fallback). Prints MB/s of both, one thread each, and the first difference if there is one.
"""
import array
import json
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BLOCKS = [(0xC0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x65F), (0x900, 0x97F),
          (0xE01, 0xE5B), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x3040, 0x30FF), (0x4E00, 0x9FA5),
          (0xAC00, 0xD7A3), (0xF900, 0xFA6D), (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0x1D400, 0x1D4FF), (0x2150, 0x218B),
          (0x660, 0x669)]
EMOJI = "\U0001F600 \U0001F469\u200D\U0001F4BB \U0001F3F3\uFE0F\u200D\U0001F308 \U0001F1E9\U0001F1EA \U0001F44D\U0001F3FD".split(" ")
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b", "\u2028", "\x85", "\x1c", "    "]


def corpus():
    text = (ROOT / "data" / "sherlock.txt").read_text(encoding="utf-8") * 3
    code = []
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        code.append(path.read_text(encoding="utf-8", errors="ignore"))
    text += "".join(code)[:5_000_000]
    rng = random.Random(5)
    words = []
    for _ in range(450_000):
        kind = rng.random()
        if kind < 0.06:
            words.append(rng.choice(EMOJI))
        elif kind < 0.12:
            words.append(str(rng.randrange(10 ** rng.randint(1, 12))))
        elif kind < 0.2:
            words.append("".join(rng.choice("e\u0301a\u0308o\u0302\u0323n\u0303\u1100\u1161\u11a8") for _ in range(rng.randint(1, 6))))
        elif kind < 0.24:
            words.append(rng.choice(["'s", "'S", "'LL", "don't", "I'\u017f", "\u212a's", "<|im_start|>", "<s>", "</s>", "!?", "...", "_x_", "\u2581"]))
        else:
            low, high = rng.choice(BLOCKS)
            words.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 7))))
        words.append(rng.choice(SPACES))
    return text + "".join(words)


def train(style, path, text):
    if style == "llama2":
        tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
        split = Tokenizer(models.BPE())  # train on words, or the trainer would learn whole lines
        split.normalizer = tok.normalizer
        split.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
        split.train_from_iterator([text[:6_000_000]], trainers.BpeTrainer(vocab_size=12000, special_tokens=special, limit_alphabet=2000, show_progress=False))
        model = json.loads(split.to_str())["model"]
        tok.model = models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
        tok.add_special_tokens(["<unk>", "<s>", "</s>"])
    else:
        tok = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
        if style == "qwen":
            tok.normalizer = normalizers.NFC()
        if style == "gpt2":
            tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            tok.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(LLAMA3 if style == "llama3" else QWEN), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tok.decoder = decoders.ByteLevel()
        tok.train_from_iterator([text[i:i + 10000] for i in range(0, 6_000_000, 10000)], trainers.BpeTrainer(
            vocab_size=30000, special_tokens=["<|endoftext|>", "<|im_start|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.save(str(path))


def main():
    bench, files = sys.argv[1], sys.argv[2:]
    text = corpus()
    work = pathlib.Path(tempfile.mkdtemp())
    (work / "text").write_text(text, encoding="utf-8", newline="")
    size = (work / "text").stat().st_size / 1e6
    print(f"{size:.1f} MB of mixed text; one thread each")
    if not files:
        for style in ["gpt2", "llama3", "qwen", "llama2"]:
            files.append(str(work / f"{style}.json"))
            train(style, files[-1], text)
    bad = 0
    for name in files:
        tok = Tokenizer.from_file(name)
        start = time.time()
        want = tok.encode(text, add_special_tokens=False).ids
        theirs = size / (time.time() - start)
        out = subprocess.run([bench, name, work / "text", work / "ids"], capture_output=True, text=True)
        if out.returncode:
            print(name, out.stderr.strip())
            bad += 1
            continue
        got = array.array("i", (work / "ids").read_bytes())
        same = list(got) == want
        bad += not same
        print(f"{pathlib.Path(name).name:28} vocabulary {tok.get_vocab_size():7}  {len(want):9} ids  {'identical' if same else 'DIFFER'}  "
              f"ours {out.stdout.split()[2]:>6} MB/s, tokenizers {theirs:.1f} MB/s")
        if not same:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print("  first difference at", at, "ours", list(got[at:at + 6]), "theirs", want[at:at + 6], repr(tok.decode(want[max(0, at - 4):at + 6])))
    sys.exit(bad > 0)


main()
