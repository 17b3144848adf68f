"""Writes the demo's prompts as token ids: bytes for the reference model, else as the checkpoint's tokenizer says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmcached.cache.checkpoints.language import FIELD, Language
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, TOKEN_IDS, Modality


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """The vocabulary of the model behind `generate`.

    Attributes:
        begin: Token ids that a prompt begins with.
        encode: Returns the token ids of a text.
        marks: Placeholder tokens of the items that prompts may have.
        not_text: Returns whether a generated token has no place in the next turn's prompt.
    """

    begin: Sequence[int]
    encode: Callable[[str], list[int]]
    marks: Mapping[Modality, int]
    not_text: Callable[[int], bool]

    @classmethod
    def of(cls, config: ServiceConfig) -> PromptWriter:
        """Return the writer for a service's model.

        Raises:
            ConfigError: The checkpoint has no tokenizer.json, or one that cannot be read.
        """
        if config.model.kind == "reference":
            return cls(
                [BEGIN_TOKEN_ID], lambda text: list(text.encode()), TOKEN_IDS, lambda token: token >= BEGIN_TOKEN_ID
            )
        return _of_checkpoint(config)

    def prompt(self, text: str, modality: Modality) -> list[int]:
        """Return a prompt of a text and one item."""
        return [*self.begin, *self.encode(text), self.marks[modality]]


def _of_checkpoint(config: ServiceConfig) -> PromptWriter:
    from tokenizers import Tokenizer  # comes with Transformers

    file = f"{config.model.path}/tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # of no class of its own
        raise ConfigError(FIELD, file, f"cannot be read: {str(error)[:200]}") from None
    language = Language.of(config)
    never = {*language.stop_token_ids, *language.marks.values()}
    return PromptWriter(
        begin=tokenizer.encode("").ids,
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
        marks=language.marks,
        not_text=never.__contains__,
    )
