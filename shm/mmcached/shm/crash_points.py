"""Named instants at which a test kills this process with SIGKILL.

    MMC_CRASH_AT=put.mid_payload        at the first pass of that point
    MMC_CRASH_AT=put.mid_payload:3      at the third

The state that a crash leaves depends on the instruction, and an external kill cannot hit a chosen one. The points stand
where the order of two steps matters. Without the variable a point costs one call and a comparison with None.

The variable is read once, at import. An unknown label raises an error here, and the type checker rejects an unknown
label in a call, so that no test passes without its crash.

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
    "create.after_ctl",  # the control object has a name and is not locked yet
    "create.after_lock",
    "create.after_ctl_allocated",
    "create.after_data_allocated",
    "create.before_magic",
    "put.after_evict",
    "put.mid_payload",
    "put.before_commit",
    "put.before_publish",  # the slot is filled, but not valid yet
    "put.after_commit",
    "item.before_send",  # pinned, and the message to the engine is not sent
    "item.after_send",
    "deaths.before_void",
    "close.between_unlinks",
    "sweep.between_unlinks",
]
SuccessorLabel = Literal[
    "put.after_index",
    "replace.before_index",  # both records are valid, and the index shows the old one
    "replace.after_index",  # both records are valid, and the index shows the new one
    "evict.after_retire",  # the victims' slots are retired, and none is erased
    "evict.after_erase",
    "index.moved",  # a word of the key index exists twice
    "discard.after_retire",
    "promote.after_claim",  # a chunk is claimed for a nursery's record; nothing is copied
    "promote.before_commit",  # everything is copied, but no slot names the copy
    "nursery.after_create",  # the file has a name, and no client knows it
    "nursery.before_unlink",  # its memory is released, and the name still exists
    "flush.after_floor",
    "flush.before_epoch",
    "adopt.after_lock",
    "adopt.after_readers",
    "adopt.after_erase",
    "adopt.after_index",
    "adopt.before_unlink",  # nurseries that were not adopted still have names
    "adopt.before_removal",  # adoption failed, and the ring is about to be removed
]
"""Points at which the store's writer may die; the successor that adopts its ring repairs the state left there."""
ReaderLabel = Literal[
    "entry.after_lock",  # the entry still has its previous incarnation
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
    """Kill this process with SIGKILL if the environment variable selects this pass of the point."""
    if _TARGET is not None:
        _pass(label)


def parse(value: str) -> tuple[Label, int]:
    """Parse the variable's value into a label and the number of the pass, from 1; raise ConfigError if invalid."""
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
