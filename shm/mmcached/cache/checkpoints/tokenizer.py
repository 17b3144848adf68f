"""Turns text into the token ids of a checkpoint, and back, with the tokenizer of its folder.

`tokenizer.json` is read by the package `tokenizers`, which Transformers brings; neither Transformers nor torch is
imported. Without that file prompts are token ids, and answers have no text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmcached.wire.errors import ConfigError, InvalidRequest

FIELD = "prompt"
FILE = "tokenizer.json"
_MOST_CHARACTERS = 32
"""Characters per token of the longest text that is tokenized, for any `max_model_len`."""


class CheckpointTokenizer:
    """Tokenizer of a checkpoint's folder; raises `ConfigError` if its file cannot be read.

    Attributes:
        is_present: Whether the folder has a tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._tokenizer: Any = None
        self.is_present = self._file.exists()
        if not self.is_present:
            return
        # The package makes a batch in a pool of its own threads otherwise, also a batch of one text.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(self._file))
        except Exception as error:  # the package raises plain exceptions
            raise ConfigError("model.path", str(self._file), f"cannot be read: {str(error)[:200]}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def check_length(self, num_characters: int, *, max_model_len: int, field: str = FIELD) -> None:
        """Refuse text before it is tokenized.

        Raises:
            InvalidRequest: The checkpoint has no tokenizer, or the text is far too long.
        """
        if not self.is_present:
            raise InvalidRequest(field, "text", f"a prompt of token ids: the checkpoint has no {FILE}")
        longest = _MOST_CHARACTERS * max_model_len
        if num_characters > longest:
            limit = f"at most {longest} characters (max_model_len is {max_model_len})"
            raise InvalidRequest(field, f"{num_characters} characters", limit)

    def ids_of(self, text: str, *, adds_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text; releases the GIL meanwhile.

        Args:
            adds_special_tokens: Whether to put those around it that the checkpoint puts around a text.

        Raises:
            InvalidRequest: It is not valid text.
        """
        try:
            # A batch of one: `encode` keeps the GIL. The fast form leaves out the places of tokens in the text.
            (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=adds_special_tokens)
            return list(found.ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(FIELD, "text", "half of a surrogate pair is no text") from error

    def with_frames(self, text: str, frame: tuple[int, int], mark: int) -> str:
        """Return a text with a mark and both tokens of the frame for each first token of it, as Gemma's processor does.

        A text that has marks is not changed; nor is any, if the tokenizer lacks one of these tokens.
        """
        begin, inside, end = (self._tokenizer.id_to_token(each) for each in (frame[0], mark, frame[1]))
        if None in (begin, inside, end) or inside in text:
            return text
        return text.replace(begin, f"\n\n{begin}{inside}{end}\n\n")

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones; bytes that are not UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))
