"""Makes the text of a prompt out of chat messages, with the chat template of a checkpoint's folder.

    chat_template.jinja, else chat_template.json, else tokenizer_config.json ──Jinja, sandboxed──> text

The environment is that of Transformers' `apply_chat_template` (its `utils.chat_template_utils`), which is not imported
because it imports torch. A template is no code: it reaches no attributes that begin with an underscore, changes no
object, and its ranges are bounded.

Source: transformers 5.23, `_compile_jinja_template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from mmcached.cache.checkpoints.json_files import json_of
from mmcached.wire.errors import ConfigError, InvalidRequest
from mmcached.wire.messages.parts import ChatMessage

FIELD = "messages"
_FILE = "chat_template.jinja"
_JSON_FILES = ("chat_template.json", "tokenizer_config.json")
_PROBE = "a question"


class ChatTemplate:
    """The chat template of a checkpoint's folder; read and compiled at its first use, also by any thread.

    Attributes:
        begin_token: Text of the tokenizer's begin token; "" without one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """Return the text of a conversation, up to where the answer begins.

        Raises:
            InvalidRequest: The checkpoint has no chat template, or it takes no such messages; or it is invalid.
        """
        return self._render([self._plain(index, message) for index, message in enumerate(messages)])

    @cached_property
    def begin_token(self) -> str:
        return self._tokens.get("bos_token", "")

    def _plain(self, index: int, message: ChatMessage) -> dict[str, Any]:
        """Return a message in the form that the template takes: content as text, or as a list of parts."""
        content: Any = message.content
        if isinstance(content, str):
            if not self._takes_text and self._takes_parts:
                content = [{"type": "text", "text": content}]
        elif self._takes_parts:
            content = [
                {"type": "text", "text": part.text} if part.kind == "text" else {"type": "image"} for part in content
            ]
        elif any(part.kind == "image" for part in content):
            limit = "text: the checkpoint's chat template has no pictures"
            raise InvalidRequest(f"{FIELD}[{index}].content", "an image", limit)
        else:
            content = "\n".join(part.text for part in content)
        return {"role": message.role, "content": content}

    @cached_property
    def _takes_text(self) -> bool:
        return self._shows_probe(_PROBE)

    @cached_property
    def _takes_parts(self) -> bool:
        return self._shows_probe([{"type": "text", "text": _PROBE}])

    def _shows_probe(self, content: object) -> bool:
        """Return whether the template shows this content, and not the list itself as Python writes it."""
        try:
            text = self._render([{"role": "user", "content": content}])
        except InvalidRequest:
            return False
        return _PROBE in text and "'type'" not in text

    def _render(self, messages: list[dict[str, Any]]) -> str:
        template = self._template
        try:
            text = template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._tokens
            )
        except Exception as error:  # a template may fail in any way, or refuse messages in its own words
            roles = [message["role"] for message in messages]
            raise InvalidRequest(FIELD, roles[:16], f"the chat template refuses them: {str(error)[:200]}") from None
        return str(text)

    @cached_property
    def _template(self) -> Any:
        source = self._source()
        if source is None:
            limit = f"a prompt: the checkpoint has no chat template ({_FILE}, or in {' or '.join(_JSON_FILES)})"
            raise InvalidRequest(FIELD, "given", limit)
        try:
            return _environment().from_string(source)
        except Exception as error:  # of Jinja: the template is invalid
            raise InvalidRequest(
                FIELD, "given", f"a prompt: the chat template is invalid: {str(error)[:200]}"
            ) from None

    def _source(self) -> str | None:
        file = self._folder / _FILE
        if file.exists():
            return file.read_text(encoding="utf-8")
        for name in _JSON_FILES:
            found = self._json(name).get("chat_template")
            if isinstance(found, list):  # several, by name
                found = {each["name"]: each["template"] for each in found}
            if isinstance(found, dict):
                found = found.get("default")
            if isinstance(found, str):
                return found
        return None

    @cached_property
    def _tokens(self) -> Mapping[str, str]:
        """Special tokens by name, as `bos_token`, which templates may show."""
        settings = self._json("special_tokens_map.json") | self._json("tokenizer_config.json")
        tokens: dict[str, str] = {}
        for name, value in settings.items():
            token = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(token, str):
                tokens[name] = token
        return tokens

    def _json(self, name: str) -> dict[str, Any]:
        file = self._folder / name
        try:
            return json_of(file, "model.path") if file.exists() else {}
        except ConfigError as error:
            raise InvalidRequest(FIELD, "given", f"a prompt: {error}") from error


def _environment() -> Any:
    """Return the environment in which Transformers renders chat templates."""
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """Shows the content of `{% generation %}` blocks, which mark answers for training."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Namespace(jinja2.utils.Namespace):
        """Takes no names that begin with an underscore."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *values = args
            for name in dict(*values, **kwargs):
                _check_name(name)
            jinja2.utils.Namespace.__init__(self, *values, **kwargs)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    def _check_name(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r}")

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **settings: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **settings)

    def make_dict(*values: Any, **named: Any) -> dict[Any, Any]:  # not the type, whose attributes lead to others
        return dict(*values, **named)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=strftime_now,
        namespace=Namespace,
        dict=make_dict,
    )
    return environment
