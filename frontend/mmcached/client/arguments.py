"""Checks of a caller's arguments: return the value to send, or raise `InvalidRequest` with field, value and limit.

In a list the error names the first invalid entry. No call sends a message before all of its arguments are checked.
numpy's integers and real numbers are accepted as numbers; a bool is not. Text of a subclass of `str` (numpy's, an
enumeration's) is sent as a plain string of the same characters. Files: `media_files`; options of clips: `clips`.
"""

from __future__ import annotations

import math
import numbers
import os
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmcached.wire.errors import ConfigError, Detail, InvalidRequest
from mmcached.wire.messages.frontend import ANY_CLIENT, CLIENT_NAME, MAX_COST_S, MAX_PIN_S, MAX_TTL_S
from mmcached.wire.messages.parts import (
    MAX_ROW_KEYS,
    VERSION_NAME,
    MessageLimits,
    RowsWanted,
)
from mmcached.wire.paths import RunDir, default_run_dir
from mmcached.wire.sockets.frames import Frame

MAX_TIMEOUT_S = 86_400.0
MAX_TOKENS = 1 << 20
MAX_TOKEN_ID = (1 << 31) - 1
MAX_NAME_CHARACTERS = 256
MAX_KEYS = 4096
MAX_IMAGE_ID_BYTES = 256
MAX_POSITION = 1 << 32


@dataclass(slots=True)
class Options:
    """Settings of a client.

    Attributes:
        timeout_s: Default deadline of a call.
        connect_timeout_s: Deadline of the first contact.
        tenant: Name under which items are cached; other tenants never hit them.
        fail_open: Whether a store call without a service is a miss instead of an error.
        name: Name of this kind of client, under which the service counts its hits, misses and puts.
        counts_hits: Whether its hits keep records in the store longer.

    Raises:
        InvalidRequest: A setting is invalid.
    """

    timeout_s: float
    connect_timeout_s: float
    tenant: str
    fail_open: bool
    name: str = ANY_CLIENT
    counts_hits: bool = True

    def __post_init__(self) -> None:
        self.timeout_s = checked_timeout("timeout_s", self.timeout_s)
        self.connect_timeout_s = checked_timeout("connect_timeout_s", self.connect_timeout_s)
        self.tenant = checked_tenant(self.tenant)
        check_bool("fail_open", self.fail_open)
        check_bool("counts_hits", self.counts_hits)
        name = text_of(self.name)
        if name is None or not re.match(CLIENT_NAME, name):
            limit = "1 to 32 lower-case letters, digits, '.', '_' and '-', the first a letter or digit"
            raise invalid("name", self.name, limit)
        self.name = name


def text_of(value: Any) -> str | None:
    """Return text as a plain string, also that of a subclass of `str`; None for other types."""
    if type(value) is str:
        return value
    # Not `str(value)`: a subclass, such as an enumeration, may return other text there.
    return str.__str__(value) if issubclass(type(value), str) else None


def checked_tenant(tenant: Any) -> str:
    name = text_of(tenant)
    if name is None or not _is_name(name):
        raise invalid("tenant", tenant, f"a string of at most {MAX_NAME_CHARACTERS} Unicode characters")
    return name


def checked_int(field: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise invalid(field, value, f"an integer from {least} to {most}")
    number = int(value)
    if not least <= number <= most:
        limit = f"an integer from {least} to {most}"
        raise InvalidRequest(field, number, limit) if number.bit_length() < 128 else invalid(field, number, limit)
    return number


def checked_timeout(field: str, value: Any) -> float:
    limit = f"a number of seconds above 0 and at most {MAX_TIMEOUT_S:.0f}"
    return checked_real(field, value, lambda seconds: 0 < seconds <= MAX_TIMEOUT_S, limit)


def checked_version(version: Any) -> str:
    text = text_of(version)
    if text is None or re.search(VERSION_NAME, text) is None:
        raise invalid("version", version, "up to 64 letters, digits and ._+- that begin with a letter or digit")
    return text


def checked_ttl(ttl_s: Any) -> float:
    """Return the time to live of a record in seconds; 0.0, which is invalid as an argument, for None: no expiry."""
    if ttl_s is None:
        return 0.0
    limit = f"a number of seconds above 0 and at most {MAX_TTL_S:.0f}; None for a record that does not expire"
    return checked_real("ttl_s", ttl_s, lambda seconds: 0 < seconds <= MAX_TTL_S, limit)


def checked_pin_ttl(ttl_s: Any) -> float:
    limit = f"a number of seconds above 0 and at most {MAX_PIN_S}"
    return checked_real("ttl_s", ttl_s, lambda seconds: 0 < seconds <= MAX_PIN_S, limit)


def checked_cost(cost_s: Any) -> float | None:
    """Return the cost of a record in seconds, at most `MAX_COST_S`; None for None."""
    if cost_s is None:
        return None
    limit = "a number of seconds from 0 on; None for a cost that is not known"
    return min(checked_real("cost_s", cost_s, lambda seconds: 0 <= seconds < math.inf, limit), MAX_COST_S)


def checked_real(field: str, value: Any, is_possible: Callable[[float], bool], limit: str) -> float:
    """Return a number for which `is_possible` is true; NaN is always invalid."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise invalid(field, value, limit)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not is_possible(number):
        raise InvalidRequest(field, number if math.isfinite(number) else str(number), limit)
    return number


def check_sequence(field: str, values: Any) -> None:
    """Raise InvalidRequest unless it is a sequence."""
    if not is_sequence(values):
        raise invalid(field, values, f"a sequence of {field}, also for a single one: [{field[:-1]}]")


def check_bool(field: str, value: Any) -> None:
    """Raise InvalidRequest unless it is True or False."""
    if not isinstance(value, bool):
        raise invalid(field, value, "True or False")


def run_dir_of(run_dir: Any) -> RunDir:
    """Return the run directory; the default for None."""
    if run_dir is not None and not isinstance(run_dir, str | os.PathLike):
        raise invalid("run_dir", run_dir, "a path")
    if run_dir is None:
        return RunDir(default_run_dir())
    try:
        return RunDir(Path(run_dir))
    except ConfigError:  # names the field, the path and the limit
        raise
    except (ValueError, TypeError) as error:
        raise invalid("run_dir", str(run_dir), str(error)) from error


def checked_prompt(prompt: Any) -> str | list[int]:
    """Return text, or token ids as a list; a one-dimensional integer array or tensor is taken as a list."""
    text = text_of(prompt)
    if text is not None:
        if not is_unicode(text):
            raise invalid("prompt", text, "Unicode text; this one has a lone surrogate")
        return text
    try:
        if hasattr(prompt, "tolist") and len(getattr(prompt, "shape", (0,))) == 1:
            prompt = prompt.tolist()
    except Exception as error:  # raised by a quantized tensor, for example
        raise invalid("prompt", prompt, f"text or a sequence of token ids; of this one: {_shown(error)}") from None
    if not is_sequence(prompt):
        raise invalid("prompt", prompt, "text or a sequence of token ids")
    if set(map(type, prompt)) <= {int} and (not prompt or (min(prompt) >= 0 and max(prompt) <= MAX_TOKEN_ID)):
        return list(prompt)
    return [checked_int(f"prompt[{index}]", token, 0, MAX_TOKEN_ID) for index, token in enumerate(prompt)]


def checked_rows(hidden_states: Any) -> RowsWanted | None:
    """Return the requested hidden states; True means all of the last layer, False none."""
    if isinstance(hidden_states, bool):
        return RowsWanted() if hidden_states else None
    if not isinstance(hidden_states, RowsWanted):
        raise invalid("hidden_states", hidden_states, "True, False or RowsWanted(...)")
    rows = hidden_states
    if not is_sequence(rows.keys) or not 1 <= len(rows.keys) <= MAX_ROW_KEYS:
        raise invalid("rows.keys", rows.keys, f"a list of 1 to {MAX_ROW_KEYS} keys")
    keys = checked_keys(rows.keys, "rows.keys")
    delivery = text_of(rows.delivery)
    if delivery not in ("full", "delta"):
        raise invalid("rows.delivery", rows.delivery, '"full" or "delta"')
    first = checked_int("rows.first", rows.first, 0, MAX_POSITION - 1)
    if first and delivery == "full":
        raise InvalidRequest("rows.first", first, '0 if all rows are wanted (delivery "full")')
    return RowsWanted(keys, first, "full" if delivery == "full" else "delta")


def checked_keys(keys: Any, field: str = "keys") -> list[str]:
    """Return the keys as plain strings."""
    if not is_sequence(keys):
        raise invalid(field, keys, f"a sequence of at most {MAX_KEYS} keys")
    if len(keys) > MAX_KEYS:
        raise InvalidRequest(field, len(keys), f"a sequence of at most {MAX_KEYS} keys")
    names = []
    for index, key in enumerate(keys):
        if type(key) is str and len(key) <= MAX_NAME_CHARACTERS and key.isascii():  # as in `checked_key`
            names.append(key)
            continue
        name = text_of(key)
        if name is None or not _is_name(name):
            raise _no_key(f"{field}[{index}]", key)
        names.append(name)
    return names


def checked_key(key: Any) -> str:
    if type(key) is str and len(key) <= MAX_NAME_CHARACTERS and key.isascii():  # fast path of nearly all keys
        return key
    name = key if type(key) is str else text_of(key)
    if name is None or not _is_name(name):
        raise _no_key("key", key)
    return name


def checked_match(match: Any) -> str:
    """Return a pattern of keys."""
    pattern = text_of(match)
    if pattern is None or not _is_name(pattern):
        raise invalid("match", match, f"a pattern of at most {MAX_NAME_CHARACTERS} Unicode characters, such as 'cat/*'")
    return pattern


def checked_image_ids(image_ids: Any, images: Any) -> list[str | None]:
    """Return the ids as plain strings: one per image, or an empty list."""
    check_sequence("images", images)
    num_images = len(images)
    limit = f"a sequence of {num_images}: an id or None for each image"
    if not is_sequence(image_ids):
        raise invalid("image_ids", image_ids, limit)
    if not image_ids:
        return []
    if len(image_ids) != num_images:
        raise InvalidRequest("image_ids", len(image_ids), limit)
    names: list[str | None] = []
    for index, image_id in enumerate(image_ids):
        name = text_of(image_id)
        if image_id is not None and (
            name is None or not is_unicode(name) or not 1 <= len(name.encode()) <= MAX_IMAGE_ID_BYTES
        ):
            limit = f"an id is text of 1 to {MAX_IMAGE_ID_BYTES} bytes of UTF-8; hash what is longer"
            raise invalid(f"image_ids[{index}]", image_id, limit)
        names.append(name)
    return names


def check_function(fn: Any) -> None:
    """Raise InvalidRequest unless it is callable."""
    if not callable(fn):
        raise invalid("fn", fn, "a function without arguments that returns the record")


def check_message(frames: Sequence[Frame], limits: MessageLimits) -> None:
    """Raise InvalidRequest for a message beyond the service's limits."""
    sizes = [frame.nbytes if type(frame) is memoryview else len(frame) for frame in frames]
    if len(sizes) > limits.max_frames:
        limit = f"at most {limits.max_frames} images or tensors and other frames"
        raise InvalidRequest("message.frames", len(sizes), limit)
    if sizes[1] > limits.max_body_bytes:
        limit = f"at most {limits.max_body_bytes} bytes of prompt, names and keys"
        raise InvalidRequest("message.body_bytes", sizes[1], limit)
    if sum(sizes) > limits.max_bytes:
        raise InvalidRequest("message.bytes", sum(sizes), f"at most {limits.max_bytes} (limits.max_message_mb)")


def _no_key(field: str, key: Any) -> InvalidRequest:
    limit = f"a key is a string of at most {MAX_NAME_CHARACTERS} Unicode characters; hash what is longer"
    return invalid(field, key, limit)


def _is_name(text: str) -> bool:
    return len(text) <= MAX_NAME_CHARACTERS and is_unicode(text)


def is_sequence(value: Any) -> bool:
    """Return whether a value is a list, or another sequence that is neither text nor bytes."""
    if isinstance(value, list | tuple):  # fast path: the check below takes longer
        return True
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def is_unicode(text: str) -> bool:
    """Return whether text can be encoded: it has no lone surrogate."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def invalid(field: str, value: Any, limit: str) -> InvalidRequest:
    """Return the error for a value of any type and size."""
    return InvalidRequest(field, _shown(value), limit)


def _shown(value: Any) -> Detail:
    """Return a short text or a number as it is, and the beginning of the `repr` of any other value."""
    if type(value) is bool or (type(value) is int and value.bit_length() < 64):
        return value
    try:
        # The value may be a whole film, a tensor, or a deeply nested dict.
        if isinstance(value, str):
            shown = str.__str__(value[:80])
        else:
            shown = repr(value[:80]) if isinstance(value, bytes | bytearray) else _SHORTENED.repr(value)
    except Exception:  # a caller's object may raise any error in `repr`
        shown = type(value).__name__
    return shown.encode(errors="backslashreplace").decode()[:80]


_SHORTENED = reprlib.Repr()
_SHORTENED.maxother = _SHORTENED.maxlong = 80
