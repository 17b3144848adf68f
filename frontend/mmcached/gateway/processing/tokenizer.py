"""Turns the text of a prompt into the token ids of a checkpoint, with the tokenizer of its folder.

`tokenizer.json` is read by the package `tokenizers`, which Transformers brings; neither Transformers nor torch is
imported. Without that file prompts are token ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmcached.wire.errors import ConfigError, InvalidRequest

FIELD = "prompt"
_FILE = "tokenizer.json"
_MOST_CHARACTERS = 32
"""Characters per token of the longest text that is tokenized, for any `max_model_len`."""


class CheckpointTokenizer:
    """Tokenizer of a checkpoint's folder; raises `ConfigError` if its file cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._tokenizer: Any = None
        if not self._file.exists():
            return
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(self._file))
        except Exception as error:  # the package raises plain exceptions
            raise ConfigError("model.path", str(self._file), f"cannot be read: {str(error)[:200]}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def ids_of(self, text: str, *, max_model_len: int) -> list[int]:
        """Return the tokens of a text, with those that the checkpoint puts around it.

        Raises:
            InvalidRequest: The checkpoint has no tokenizer, or the text is far too long, or not valid text.
        """
        if self._tokenizer is None:
            raise InvalidRequest(FIELD, "text", f"a list of token ids: the checkpoint has no {_FILE}")
        longest = _MOST_CHARACTERS * max_model_len
        if len(text) > longest:
            limit = f"at most {longest} characters (max_model_len is {max_model_len})"
            raise InvalidRequest(FIELD, f"{len(text)} characters", limit)
        try:
            return list(self._tokenizer.encode(text).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(FIELD, "text", "half of a surrogate pair is no text") from error
