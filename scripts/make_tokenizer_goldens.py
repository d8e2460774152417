#!/usr/bin/env python3
"""Makes tests/golden/bpe: a small byte-level BPE trained on data/sherlock.txt with Hugging Face's `tokenizers`,
saved both ways (tokenizer.json; vocab.json and merges.txt), and the ids it gives to a list of texts.

    /tmp/venv/bin/pip install tokenizers && /tmp/venv/bin/python scripts/make_tokenizer_goldens.py
"""
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "golden" / "bpe"
TEXTS = [
    "Hello world", " leading and  double  spaces", "trailing spaces   ", "I'm you're he'll we've they'd it's can't",
    "tabs\tand\nnewlines\n\n\n  mixed \r\n end", "1234567890 12 3.14", "naïve café — “quotes” … €",
    "漢字かな交じり文。", "مرحبا بالعالم", "Привет, мир!", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪", "e\u0301 combining", "\u00a0nbsp\u2003em\u3000ideographic",
    "zero\u200bwidth \u180e mongolian", "'S 'T 'LL upper", "x" * 50, "!?!?...;;;", "def f(x):\n    return x**2  # comment", "",
    " ", "\n", "Sherlock Holmes took his bottle from the corner of the mantel-piece",
]

OUT.mkdir(parents=True, exist_ok=True)
tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
tok.train([str(ROOT / "data" / "sherlock.txt")],
          trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tok.save(str(OUT / "tokenizer.json"))
pair = OUT / "pair"
pair.mkdir(exist_ok=True)
tok.model.save(str(pair))
(OUT / "ids.json").write_text(json.dumps([{"text": t, "ids": tok.encode(t).ids} for t in TEXTS], indent=0))
print(tok.get_vocab_size(), "tokens,", len(TEXTS), "texts")
