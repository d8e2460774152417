#!/usr/bin/env python3
"""Makes tests/golden/templates.json: chat templates (in the style of published models, and one per language feature)
rendered by jinja2 exactly as transformers sets it up. Errors are recorded as null.

    /tmp/venv/bin/pip install jinja2 && /tmp/venv/bin/python scripts/make_template_goldens.py
"""
import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "templates.json"
CHATML = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
QWEN3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA2 = "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""
GEMMA = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
ZEPHYR = "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
GENERATION = "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}</s>{% endgeneration %}\n{% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"
FEATURES = [
    "{{ 'a' ~ 1 ~ 2.5 ~ none ~ true }}|{{ 7 // 2 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 1.0 }} {{ 1e20 }} {{ 0.1 + 0.2 }} {{ 3.0 * 2 }}",
    "{% for x in [3, 1, 2] | sort %}{{ loop.index }}:{{ x }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for k, v in {'b': 1, 'a': [1, 'x', none, 2.0]}.items() %}{{ k }}={{ v }};{% endfor %}{{ {'z': 'it\\'s'} }} {{ ('a', 1) | list }}",
    "{% for x in range(10) if x is odd %}{% if x == 7 %}{% break %}{% endif %}{% if x == 3 %}{% continue %}{% endif %}{{ x }} {% else %}none{% endfor %}|{% for x in [] %}{% else %}empty{% endfor %}",
    "{% macro field(name, value='-', kind=none) %}<{{ name }}={{ value }}{% if kind %}:{{ kind }}{% endif %}>{% endmacro %}{{ field('a') }}{{ field('b', 2) }}{{ field('c', kind='k') }}",
    "{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}in {{ messages | length }}{% endcall %}",
    "{% set x %}  block {{ 1 + 1 }}  {% endset %}{{ x | trim | upper }}{% filter lower %}ABC{% endfilter %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ [1,2,3,4][-2:] }}{{ [1,2,3][0] }}{{ 'xyz'[-1] }}{{ [1,2,3,4,5][1:-1:2] }}",
    "{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'in', ['user', 'tool']) | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
    "{{ undefined_thing }}|{{ undefined_thing is defined }}|{{ undefined_thing | default('d') }}|{{ '' | default('e', true) }}|{{ none is none }}|{{ messages[0].nothing is undefined }}",
    "{{ undefined_thing.attribute }}",
    "{{ 'a b  c'.split() }}{{ 'a,b,c'.split(',', 1) }}{{ ' x '.strip() }}{{ 'xxay'.lstrip('x') }}{{ 'Hello World'.lower() }}{{ 'hello world'.title() }}{{ 'hELLO'.capitalize() }}{{ 'a-b'.replace('-', '+') }}{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}",
    "{{ [1, [2, {'a': None}], 'é\"\\n'] | tojson }} {{ {'k': [1, {}], 'e': []} | tojson(indent=2) }} {{ 1.5 | tojson }} {{ true | tojson }}",
    "{{ 'é漢😀' | length }} {{ 'é漢😀'[1] }} {{ 'straße' | upper }} {{ 'ÀÉ' | lower }}",
    "{{ 1 < 2 < 3 }} {{ 1 in [1] }} {{ 'b' not in 'abc' }} {{ not true or false and true }} {{ 'yes' if 0 else 'no' }} {{ 1 == 1.0 }} {{ [1] == [1] }} {{ 'a' < 'b' }} {{ true and 'x' or 'y' }}",
    "  {% if true %}\n  kept indent\n  {% endif %}\nafter\n{%- if true -%}\n  stripped  \n{%- endif %}\n\n  {# comment #}\n  end {{ '\n' }}\n",
    "{%+ if true %}plus{% endif +%}\nnext{% raw %}{{ not rendered }}{% endraw %}",
    "{{ '%s is %d' % ('x', 3) }} {{ 'one %s' % 'two' }}",
    "{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{{ messages.append(1) }}", "{% include 'x' %}", "{{ ''.__class__ }}", "{{ 'unclosed }}", "{% if %}{% endif %}", "{{ 1 + 'a' }}",
    "{% for k, v in {'b': 2, 'A': 1} | dictsort %}{{ k }}{{ v }}{% endfor %} {{ [3, 1] | max }} {{ ['b', 'a', 'b'] | unique | list }} {{ [1, 2] | sum }} {{ 'x' | int(5) }} {{ '42' | int }} {{ 3.7 | int }} {{ 2.5 | round }} {{ -3 | abs }}",
    "{{ 'l1\nl2' | indent(2) }} {{ '<a&b>' | e }} {{ [1, 2, 3] | first }}{{ [1, 2, 3] | last }} {{ 'abc' | reverse }} {{ [1, 2] | reverse | list }}",
    "{% for m in messages %}{{ loop.cycle('odd', 'even') }}{{ loop.revindex }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role | default('-') if loop.nextitem is defined }} {% endfor %}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'assistant' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }}",
    "{{ dict(a=1, b='x') }} {{ dict(a=1).get('z', 7) }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }} {{ 'a' in {'a': 1} }}",
    "{{ [x for x in y] }}", "{{ 'a' is string }}{{ 1 is number }}{{ {} is mapping }}{{ [] is sequence }}{{ 'abc' is iterable }}{{ 4 is divisibleby 2 }}{{ 4 is even }}{{ true is boolean }}{{ 1 is eq 1 }}{{ 1.5 is float }}{{ 2 is integer }}{{ 'x' is in ['x'] }}",
    "{%- set x = 5 -%} {{- x -}} {%- if x is not none and x > 3 %} big {% endif -%}  .",
    "{{ '\\u00e9\\t\\x41' }} {{ \"double \\\"q\\\"\" }} {{ 'a' 'b' }}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }},{% endfor %}{{ 'x' * 3 }}{{ [1] + [2] }}",
]
CHATS = [
    [{"role": "user", "content": "Hi there "}],
    [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"}, {"role": "user", "content": "Grüße 👋"}],
    [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": {"city": "Paris", "n": 1.5}}}]},
     {"role": "tool", "content": "sunny", "name": "get"}, {"role": "assistant", "content": "Sunny."}],
    [{"role": "assistant", "content": "I begin."}],
]
TOOLS = [{"type": "function", "function": {"name": "get", "description": "weather's \"state\"", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": []}}}]


def render(template, messages, prompt, tools):
    try:
        text, spans = render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=prompt,
                                            return_assistant_tokens_mask="{% generation" in template, bos_token="<s>", eos_token="</s>")
        return text[0], spans[0] if spans else []
    except Exception as e:  # noqa: BLE001: any refusal is a refusal
        print(type(e).__name__, str(e)[:70], "|", template[:60].replace("\n", "\\n"))
        return None, []


TEMPLATES = dict(chatml=CHATML, qwen=QWEN, qwen3=QWEN3, llama3=LLAMA3, llama2=LLAMA2, mistral=MISTRAL, gemma=GEMMA, zephyr=ZEPHYR,
                 generation=GENERATION)
cases = []
for name, template in TEMPLATES.items():
    for chat, messages in enumerate(CHATS):
        for prompt in (False, True):
            for tools in (None, TOOLS):
                text, spans = render(template, messages, prompt, tools)
                cases.append(dict(name=name, chat=chat, prompt=prompt, tools=tools is not None, text=text, spans=spans))
for i, template in enumerate(FEATURES):
    TEMPLATES[f"feature {i}"] = template
    text, spans = render(template, CHATS[1], True, None)
    cases.append(dict(name=f"feature {i}", chat=1, prompt=True, tools=False, text=text, spans=spans))
OUT.write_text(json.dumps(dict(templates=TEMPLATES, chats=CHATS, tools=TOOLS, cases=cases), ensure_ascii=False, indent=0))
print(len(cases), "cases")
