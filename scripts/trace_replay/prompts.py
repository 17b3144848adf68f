"""Prompts as lists of blocks: those of a recorded service, and the same among long ones that nobody repeats.

    prompt    | id | id | id | id | id |        equal ids, equal content from the prompt's start on
              |------ full -----|- tail -|      what is not a full block is computed each time, and never published

Knows nothing of block managers. Invariant: an id stands behind the same ids wherever it occurs, as a prefix cache's
content key does; a file in which it does not is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

BLOCK_TOKENS = 512  # of the Mooncake format


@dataclass(frozen=True, slots=True)
class Prompt:
    """The blocks of one prompt.

    Attributes:
        block_ids: of all its blocks, the last one perhaps not full.
        num_full: how many of them are.
        is_counted: whether it belongs to the service whose hit rate is asked for; else it shares no block with those.
    """

    block_ids: list[int]
    num_full: int
    is_counted: bool = True


def read_trace(path: Path) -> list[Prompt]:
    """Read a file in the Mooncake format: one JSON object a line, with `input_length` in tokens and `hash_ids`.

    Raises:
        ValueError: a line is not of that kind, or an id occurs behind different ids; the text names the line.
    """
    prompts = []
    parents: dict[int, int | None] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                block_ids, num_tokens = [int(block_id) for block_id in record["hash_ids"]], int(record["input_length"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}:{number}: no request in the Mooncake format: {error!r}") from error
            if len(block_ids) != -(-num_tokens // BLOCK_TOKENS) or not block_ids:
                raise ValueError(f"{path}:{number}: {len(block_ids)} blocks of {BLOCK_TOKENS} for {num_tokens} tokens")
            for parent, block_id in zip([None, *block_ids], block_ids, strict=False):
                if parents.setdefault(block_id, parent) != parent:
                    raise ValueError(f"{path}:{number}: block {block_id} is behind {parent} and {parents[block_id]}")
            prompts.append(Prompt(block_ids, num_tokens // BLOCK_TOKENS))
    return prompts


def with_scans(prompts: Sequence[Prompt], *, every: int, num_scans: int, num_blocks: int) -> list[Prompt]:
    """Return these prompts with `num_scans` one-off ones of `num_blocks` each after every `every` of them."""
    unused = count(1 + max(block_id for prompt in prompts for block_id in prompt.block_ids))
    mixed = []
    for number, prompt in enumerate(prompts, 1):
        mixed.append(prompt)
        if number % every == 0:
            mixed += [Prompt(list(islice(unused, num_blocks)), num_blocks, is_counted=False) for _ in range(num_scans)]
    return mixed
