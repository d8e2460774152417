#!/usr/bin/env python3
"""Writes tests/golden/parquet: the same rows as .parquet (row groups, dictionaries, snappy and zstd) and .jsonl.

Needs pyarrow.
"""
import json
import pathlib

import pyarrow
import pyarrow.parquet

out = pathlib.Path(__file__).parent.parent / "tests/golden/parquet"
out.mkdir(exist_ok=True)
book = (pathlib.Path(__file__).parent.parent / "data/sherlock.txt").read_text()
texts = [{"id": i, "text": book[i * 400:i * 400 + 100 + 13 * (i % 20)]} for i in range(60)]
texts[7]["text"] = "déjà vu 中文 \U0001F600"
chats = [{"messages": [{"role": "user", "content": f"Question {i}?"}, {"role": "assistant", "content": book[i * 90:i * 90 + 60]}]}
         for i in range(25)]
for name, rows, options in (("texts", texts, {"row_group_size": 16, "compression": "zstd"}),
                            ("chats", chats, {"row_group_size": 7, "compression": "snappy"})):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out / f"{name}.parquet", **options)
    (out / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
