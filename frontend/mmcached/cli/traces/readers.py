"""Reads recorded uses of items from a file, in one of four formats, told apart by the fields of the first line.

    key        mmcached's own: {"t": 1.5, "key": "cat", "bytes": 19288089, "cost_s": 0.11, "modality": "image"}
    img_ids    ServeGen's trace_c: the pictures of each request of a batch job; no times
    chat_id    Qwen-Bailian: a request of type "image" asks for the one picture of its conversation
    hash_ids   Mooncake: each block of a prompt is taken for an item

All are JSON Lines. What a line does not say, size, seconds or modality of an item, follows from `Assumed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mmcached.cli.traces.use_trace import UseTrace
from mmcached.wire.errors import ConfigError

ALIGNMENT = 64
MAX_ITEM_BYTES = 1 << 40


class Use(NamedTuple):
    """One line's use of an item; None: the line does not say."""

    key: str
    time_s: float | None = None
    nbytes: int | None = None
    cost_s: float | None = None
    modality: str | None = None


@dataclass(frozen=True, slots=True)
class Assumed:
    """Values of items of which a trace says nothing.

    Attributes:
        nbytes: Bytes of a record. Default: the embeddings of a picture of 1080p, of Qwen2.5-VL-7B.
        cost_s: Seconds of a miss.
    """

    nbytes: int = 2691 * 3584 * 2
    cost_s: float = 0.1
    modality: str = "image"


def read_uses(path: Path, assumed: Assumed = Assumed()) -> UseTrace:
    """Read the file.

    Raises:
        ConfigError: There is no such file, it has no uses, or a line is invalid; names the line.
    """
    try:
        with path.open("rb") as lines:
            return _collect(path, lines, assumed)
    except OSError as error:
        raise ConfigError("trace", str(path), error.strerror or "cannot be read") from None


def _collect(path: Path, lines: Any, assumed: Assumed) -> UseTrace:
    uses_of: Callable[[dict[str, Any]], Iterator[Use]] | None = None
    numbers: dict[str, int] = {}
    keys: list[int] = []
    times: list[float | None] = []
    sizes: list[int] = []
    costs: list[float] = []
    modalities: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
            uses_of = uses_of or _format_of(record)
            for use in uses_of(record):
                item = numbers.setdefault(use.key, len(numbers))
                if item == len(sizes):  # the first line with an item says what it is
                    sizes.append(_aligned(assumed.nbytes if use.nbytes is None else use.nbytes))
                    costs.append(_checked(assumed.cost_s if use.cost_s is None else use.cost_s, "cost_s"))
                    modalities.append(assumed.modality if use.modality is None else use.modality)
                keys.append(item)
                times.append(None if use.time_s is None else _checked(use.time_s, "time"))
        except (msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError("trace", f"{path}:{number}", f"is not a line of a known format: {error!r}") from None
    if not keys:
        raise ConfigError("trace", str(path), "has no uses of items")
    has_times = all(time is not None for time in times)
    times_s = np.array(times, np.float64) if has_times else None
    order = np.arange(len(keys)) if times_s is None else np.argsort(times_s, kind="stable")
    return UseTrace(
        np.array(keys, np.int64)[order],
        None if times_s is None else times_s[order] - times_s[order[0]],
        np.array(sizes, np.int64),
        np.array(costs, np.float64),
        modalities,
    )


def _aligned(nbytes: Any) -> int:
    if not isinstance(nbytes, int) or not 0 < nbytes <= MAX_ITEM_BYTES:
        raise ValueError(f"bytes is {nbytes!r}, not an integer from 1 to {MAX_ITEM_BYTES}")
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _checked(value: Any, name: str) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} is {value!r}, not a number of seconds from 0 on")
    return number


def _format_of(record: dict[str, Any]) -> Callable[[dict[str, Any]], Iterator[Use]]:
    if "key" in record:
        return _own
    if "img_ids" in record:
        return _pictures
    if "chat_id" in record:
        return _Conversations().uses
    if "hash_ids" in record:
        return _blocks
    raise ValueError("none of the fields key, img_ids, chat_id and hash_ids")


def _own(record: dict[str, Any]) -> Iterator[Use]:
    key, time_s, modality = record["key"], record.get("t"), record.get("modality")
    if not isinstance(key, str) or not isinstance(modality, str | None):
        raise ValueError("key and modality must be text")
    yield Use(key, time_s, record.get("bytes"), record.get("cost_s"), modality)


def _pictures(record: dict[str, Any]) -> Iterator[Use]:
    for key in record.get("img_ids") or ():
        yield Use(str(key))


def _blocks(record: dict[str, Any]) -> Iterator[Use]:
    milliseconds = record.get("timestamp")
    time_s = None if milliseconds is None else milliseconds / 1000
    for key in record["hash_ids"]:
        yield Use(str(key), time_s, modality="prompt block")


class _Conversations:
    """The picture of each conversation: a request with a parent belongs to the conversation of the parent."""

    def __init__(self) -> None:
        self._chat_to_first: dict[int, int] = {}

    def uses(self, record: dict[str, Any]) -> Iterator[Use]:
        chat, parent = record["chat_id"], record["parent_chat_id"]
        first = self._chat_to_first[chat] = self._chat_to_first.get(parent, chat)
        if record["type"] == "image":
            yield Use(str(first), record["timestamp"])
