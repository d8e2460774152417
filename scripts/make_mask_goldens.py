#!/usr/bin/env python3
"""Makes tests/golden/masks.json: ids and assistant masks of conversations as transformers'
apply_chat_template(return_assistant_tokens_mask=True) gives them, for five templates with {% generation %}, on the small
tokenizers of scripts/make_tokenizer_goldens.py.

    /tmp/venv/bin/python scripts/make_mask_goldens.py
"""
import json
import pathlib

from transformers import PreTrainedTokenizerFast

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
G, E = "{% generation %}", "{% endgeneration %}"
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}" + G + "{{ m.content + '</s>' }}" + E +
              "{{ '\n' }}{% else %}{{ m.content + '</s>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama2": "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'assistant' %}" + G +
              "{{ ' ' + m.content + ' ' + eos_token }}" + E + "{% endif %}{% endfor %}",
    "header": "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_start|>\n\n' }}{% if m.role == 'assistant' %}" + G +
              "{{ m.content | trim + '</s>' }}" + E + "{% else %}{{ m.content | trim + '</s>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
              "{{ '<|im_start|>assistant<|im_start|>\n\n' }}{% endif %}",
    "zephyr": "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' }}" + G + "{{ m.content + eos_token }}" + E +
              "{{ '\n' }}{% else %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "plain": "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'A: ' }}" + G + "{{ m.content + eos_token }}" + E +
             "{% else %}{{ m.role + ': ' + m.content + ' ' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'A: ' }}{% endif %}",
}
CHATS = [
    [{"role": "user", "content": "Who is Sherlock Holmes?"}, {"role": "assistant", "content": "A detective, of Baker Street 221."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"},
     {"role": "user", "content": "and 3+3?\n\nplease"}, {"role": "assistant", "content": "It's  six\n"}],
    [{"role": "user", "content": "naïve café 👋"}, {"role": "assistant", "content": "Grüße, “Watson” 漢字!"}],
]
cases = []
for tokenizer in ("llama3", "qwen"):
    tok = PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / "tokenizers" / f"{tokenizer}.json"), bos_token="<s>", eos_token="</s>")
    for name, template in TEMPLATES.items():
        for chat in CHATS:
            out = tok.apply_chat_template(chat, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            cases.append(dict(tokenizer=tokenizer, name=name, messages=chat, ids=out["input_ids"], mask=out["assistant_masks"]))
(GOLDEN / "masks.json").write_text(json.dumps(dict(templates=TEMPLATES, cases=cases), ensure_ascii=False))
print(len(cases), "cases", sum(map(sum, (c["mask"] for c in cases))), "trained tokens")
