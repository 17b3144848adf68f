"""Chat templates: where they lie, what they are given, what they may not do, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmcached.gateway.processing.chat_template import ChatTemplate
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import ChatMessage, ContentPart

TEXT = """{{ bos_token }}
{%- for message in messages %}
<{{ message.role }}>{{ message['content'] | trim }}</>
{%- endfor %}
{%- if add_generation_prompt %}
<assistant>
{%- endif %}"""
PARTS = """{% for message in messages %}{{ message.role }}:
{%- for part in message.content %}
{%- if part.type == 'image' %}<image>{% else %} {{ part.text }}{% endif %}
{%- endfor %}{% generation %};{% endgeneration %}
{%- endfor %}"""
BOTH = """{% for message in messages %}
{%- if message.content is string %}[{{ message.content }}]
{%- else %}{% for part in message.content %}({{ part.text or part.type }}){% endfor %}{% endif %}
{%- endfor %}"""
PICTURE = ChatMessage("user", [ContentPart("image"), ContentPart("text", "What is it?"), ContentPart("text", "Why?")])
CHAT = [
    ChatMessage("system", "Be brief."),
    ChatMessage("user", [ContentPart("text", "Hi"), ContentPart("text", "you")]),
]


def template_of(folder: Path, source: str, **tokens: object) -> ChatTemplate:
    (folder / "chat_template.jinja").write_text(source)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return ChatTemplate(folder)


def refusal(template: ChatTemplate, *messages: ChatMessage) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        template.render(messages)
    return caught.value


def test_a_template_of_text_gets_parts_as_lines(tmp_path: Path) -> None:
    template = template_of(tmp_path, TEXT, bos_token={"content": "<s>"})
    assert template.render(CHAT) == "<s><system>Be brief.</><user>Hi\nyou</><assistant>"
    assert template.begin_token == "<s>"
    error = refusal(template, CHAT[0], PICTURE)
    assert error.details["field"] == "messages[1].content"


def test_a_template_of_parts_gets_a_text_as_its_only_part(tmp_path: Path) -> None:
    template = template_of(tmp_path, PARTS)
    assert template.render([CHAT[0], PICTURE]) == "system: Be brief.;user:<image> What is it? Why?;"
    assert template.begin_token == ""


def test_a_template_of_both_gets_what_was_written(tmp_path: Path) -> None:
    assert template_of(tmp_path, BOTH).render([CHAT[0], PICTURE]) == "[Be brief.](image)(What is it?)(Why?)"


def test_a_template_lies_in_one_of_three_files(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate(tmp_path).render(CHAT) == "Be brief."
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json {{ messages[0].content }}"}))
    assert ChatTemplate(tmp_path).render(CHAT) == "json Be brief."
    (tmp_path / "chat_template.jinja").write_text("jinja {{ messages[0].content }}")
    assert ChatTemplate(tmp_path).render(CHAT) == "jinja Be brief."


def test_a_folder_without_a_template_says_so(tmp_path: Path) -> None:
    error = refusal(ChatTemplate(tmp_path), *CHAT)
    assert error.details["field"] == "messages"
    assert "no chat template" in str(error)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "refuses"),
        ("{% for", "invalid"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("{{ raise_exception.__globals__.keys() }}", "refuses"),
        ("{% set ns = namespace(__init__=1) %}", "namespace attribute"),
        ("{% set ns = namespace() %}{% set ns.__attrs = 1 %}", "namespace attribute"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{% include 'config.json' %}", "refuses"),
    ],
)
def test_what_a_template_cannot_do_ends_the_request(tmp_path: Path, source: str, reason: str) -> None:
    error = refusal(template_of(tmp_path, source), *CHAT)
    assert error.details["field"] == "messages"
    assert reason in str(error)


def test_a_template_has_what_transformers_gives_it(tmp_path: Path) -> None:
    source = """{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}
{%- if loop.last %}{% break %}{% endif %}{% endfor %}{{ ns.n }} {{ dict(a="é<") | tojson }} {{ strftime_now("%%") }}
{{- tools is none }}"""
    assert template_of(tmp_path, source).render(CHAT) == '2 {"a": "é<"} %True'
