"""Named instants at which a test lets this process die, as `kill -9` would kill it there.

    MMC_CRASH_AT=put.mid_payload        at the first pass of that point
    MMC_CRASH_AT=put.mid_payload:3      at the third

What a crash leaves behind depends on the instruction; no kill from outside hits a chosen one. The points stand where
the order of two steps matters. Without the variable a point costs one call that compares with None.

The variable is read once, at import. What it names must exist, or a test would test nothing without a word: a misspelt
variable is an error here, a misspelt call one of the type checker.

>>> parse("put.mid_payload:3"), parse("close.between_unlinks")
(('put.mid_payload', 3), ('close.between_unlinks', 1))
"""

from __future__ import annotations

import os
import signal
from typing import Final, Literal, get_args

from mmcached.wire.errors import ConfigError

VARIABLE: Final = "MMC_CRASH_AT"

WriterLabel = Literal[
    "create.after_ctl",  # the control object has a name, and nobody has locked it
    "create.after_lock",
    "create.after_ctl_allocated",
    "create.after_data_allocated",
    "create.before_magic",
    "put.after_evict",
    "put.mid_payload",
    "put.before_commit",
    "put.before_publish",  # the slot is filled, and not valid yet
    "put.after_commit",
    "item.before_send",  # pinned, and the engine will never hear of it
    "item.after_send",
    "deaths.before_void",
    "close.between_unlinks",
    "sweep.between_unlinks",
]
SuccessorLabel = Literal[
    "put.after_index",
    "replace.before_index",  # the old record and the new one are valid, and the old one is found
    "replace.after_index",  # both are valid, and the new one is found
    "evict.after_retire",  # what goes is not valid any more, and none of it is erased
    "evict.after_erase",
    "index.moved",  # a word of the key index is there twice
    "discard.after_retire",
    "promote.after_claim",  # room in the ring is claimed for a record of a nursery, and none of it is copied
    "promote.before_commit",  # all is copied, and in no slot
    "nursery.after_create",  # its file has a name, and no client knows it
    "nursery.before_unlink",  # without memory, and with a name
    "flush.after_floor",
    "flush.before_epoch",
    "adopt.after_lock",
    "adopt.after_readers",
    "adopt.after_erase",
    "adopt.after_index",
    "adopt.before_unlink",  # nurseries without records still have names
    "adopt.before_removal",  # what could not be adopted is being removed
]
"""What the writer of the store may leave half done, and whoever adopts its ring puts right."""
ReaderLabel = Literal[
    "entry.after_lock",  # the entry has the incarnation of the former life
    "entry.after_incarnation",
    "entry.before_hello",
    "reader.after_map",
    "read.after_receive",
    "read.viewing",
    "read.in_finalizer",
    "take.after",
    "give_back.before",
    "give_back.after",
]
Label = WriterLabel | SuccessorLabel | ReaderLabel

WRITER_LABELS: Final[tuple[WriterLabel, ...]] = get_args(WriterLabel)
SUCCESSOR_LABELS: Final[tuple[SuccessorLabel, ...]] = get_args(SuccessorLabel)
READER_LABELS: Final[tuple[ReaderLabel, ...]] = get_args(ReaderLabel)
LABELS: Final[tuple[Label, ...]] = (*WRITER_LABELS, *SUCCESSOR_LABELS, *READER_LABELS)


def crash_point(label: Label) -> None:
    """Die here by SIGKILL if the environment says so; otherwise do nothing."""
    if _TARGET is not None:
        _pass(label)


def parse(value: str) -> tuple[Label, int]:
    """Return the label and the pass (1-based) that a value of the variable names; raise ConfigError if none."""
    name, colon, number = value.partition(":")
    label = next((known for known in LABELS if known == name), None)
    if label is None:
        raise ConfigError(VARIABLE, value, f"the label must be one of {', '.join(LABELS)}")
    if not colon:
        return label, 1
    if not (number.isascii() and number.isdecimal() and int(number) >= 1):
        raise ConfigError(VARIABLE, value, "after the label comes nothing, or ':n' with n = 1, 2, …")
    return label, int(number)


def _pass(label: Label) -> None:
    global _passes  # noqa: PLW0603 - one process, one death
    assert _TARGET is not None
    wanted, number = _TARGET
    if label == wanted:
        _passes += 1
        if _passes == number:
            os.kill(os.getpid(), signal.SIGKILL)


_TARGET: Final = parse(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
_passes = 0
