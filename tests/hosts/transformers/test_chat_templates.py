"""Chat templates as checkpoints have them, and tokenizers: text and tokens are what Transformers makes of the same."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mmcached.cache.checkpoints.tokenizer import CheckpointTokenizer
from mmcached.gateway.processing.chat_template import ChatTemplate
from mmcached.wire.messages.parts import ChatMessage, ContentPart
from tests.hosts.transformers.language_models import write_chat_tokenizer

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
LLAMA = """{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}{{- "Environment: ipython\n" }}{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}"""
QWEN_VL = """{% set image_count = namespace(value=0) %}{% for message in messages %}
{%- if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}
{%- if content['type'] == 'image' or 'image' in content or 'image_url' in content %}
{%- set image_count.value = image_count.value + 1 %}
{%- if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAVA = """{% for message in messages %}{% if message['role'] != 'system' %}
{{- message['role'].upper() + ': '}}{% endif %}
{%- for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}
{%- for content in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}
{{- content['text'] + ' '}}{% endgeneration %}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
TALK = [("system", "Be brief."), ("user", " Hi, “é” & <you>? "), ("assistant", "Yes."), ("user", "Why?\n")]
TEXTS = [ChatMessage(role, text) for role, text in TALK]
PICTURES = [
    *TEXTS[:3],
    ChatMessage("user", [ContentPart("text", "Is "), ContentPart("image"), ContentPart("text", "a cat?")]),
    ChatMessage("assistant", "No."),
    ChatMessage("user", [ContentPart("image")]),
]


def theirs(source: str, messages: list[ChatMessage], *, as_parts: bool) -> str:
    """Return what Transformers makes of messages, whose content is a list of parts for some templates."""

    def content_of(message: ChatMessage) -> Any:
        if isinstance(message.content, str):
            return [{"type": "text", "text": message.content}] if as_parts else message.content
        return [
            {"type": "image"} if part.kind == "image" else {"type": "text", "text": part.text}
            for part in message.content
        ]

    chat = [{"role": message.role, "content": content_of(message)} for message in messages]
    (text,), _ = render_jinja_template([chat], chat_template=source, add_generation_prompt=True, **TOKENS)
    return str(text)


@pytest.mark.parametrize(
    ("source", "messages", "as_parts"),
    [
        (CHATML, TEXTS, False),
        (CHATML, TEXTS[1:], False),
        (LLAMA, TEXTS, False),
        (GEMMA, TEXTS, False),
        (GEMMA, PICTURES, False),
        (QWEN_VL, TEXTS[1:], False),
        (QWEN_VL, PICTURES, False),
        (LLAVA, TEXTS, True),
        (LLAVA, PICTURES, True),
    ],
)
def test_a_chat_becomes_the_text_that_transformers_makes(
    tmp_path: Path, source: str, messages: list[ChatMessage], as_parts: bool
) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOKENS))
    assert ChatTemplate(tmp_path).render(messages) == theirs(source, messages, as_parts=as_parts)


def test_other_threads_go_on_while_a_text_is_tokenized(tmp_path: Path) -> None:
    tokenizer = write_chat_tokenizer(tmp_path)
    service_tokenizer = CheckpointTokenizer(tmp_path)
    text = "the quick brown fox, 你好, " * 10_000
    found: list[list[int]] = []
    worker = threading.Thread(target=lambda: found.append(service_tokenizer.ids_of(text)))
    worker.start()
    num_turns = 0
    while worker.is_alive():
        time.sleep(0)
        num_turns += 1
    assert num_turns > 50
    assert found == [tokenizer.encode(text)]
    assert service_tokenizer.ids_of("a", adds_special_tokens=False) == tokenizer.encode("a", add_special_tokens=False)
