#!/usr/bin/env python3
"""Makes tests/golden/bpe and tests/golden/tokenizers. The first: a small byte-level BPE trained on data/sherlock.txt with Hugging Face's `tokenizers`,
saved both ways (tokenizer.json; vocab.json and merges.txt), and the ids it gives to a list of texts.
The second: one small tokenizer.json in the style of Llama 3, Qwen (NFC), Llama 2 (SentencePiece-like, byte fallback),
and Mistral's newer form (Metaspace), each with the ids of the same texts, with and without special tokens.

    /tmp/venv/bin/pip install tokenizers && /tmp/venv/bin/python scripts/make_tokenizer_goldens.py
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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
STYLES = ROOT / "tests" / "golden" / "tokenizers"
STYLES.mkdir(exist_ok=True)
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MORE = TEXTS + ["<s>in</s> the  <|im_start|>user\n", "word<tool> <tool>alone <tool>", "I'\u017fT 12345", "\ud328\u11a7 Hangul", " lone space", "\u2581mark",
                "\u1100\u1161\u11a8 jamo o\u0323\u0302"]


def byte_level(pattern, nfc, ignore_merges):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train([str(ROOT / "data" / "sherlock.txt")], trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(["<s>", "</s>", "<|im_start|>"])
    return t


def sentencepiece(metaspace):
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    prefix = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = Tokenizer(models.BPE())
    trainer.normalizer, trainer.pre_tokenizer = prefix, pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer.train([str(ROOT / "data" / "sherlock.txt")], trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False))
    model = json.loads(trainer.to_str())["model"]
    t = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        t.normalizer = prefix
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<unk>", "<s>", "</s>", "<|im_start|>"])
    t.add_tokens([AddedToken("<tool>", single_word=True, lstrip=True, rstrip=True, normalized=False)])
    return t


for name, t in dict(llama3=byte_level(LLAMA3, False, True), qwen=byte_level(LLAMA3.replace("{1,3}", ""), True, False), llama2=sentencepiece(False),
                    metaspace=sentencepiece(True)).items():
    if name != "qwen":
        t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", t.token_to_id("<s>"))])
    t.save(str(STYLES / f"{name}.json"), pretty=False)
    cases = [{"text": x, "ids": t.encode(x, add_special_tokens=False).ids, "special": t.encode(x).ids} for x in MORE]
    (STYLES / f"{name}.ids").write_text(json.dumps(cases))
print(tok.get_vocab_size(), "tokens,", len(TEXTS), "texts")
