"""Every error that one process sends another, or raises to its caller.

Each class has a stable `code`, which travels, says whether a retry can help, and keeps the numbers of the case in
`details`, so that the receiver rebuilds the same class without parsing the text. Messages give the fact, the numbers
and the next step.

Where callers of vLLM's classes catch a `ValueError`, the class is one too: `InvalidRequest`, and so `ConfigError`, and
`ItemTooLarge`. Bugs (`LocalProtocolError` of a caller, `InvariantError` of mmcached) are not, so that they are not
caught by accident; nor is `CacheMiss`, where those classes assert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec

from mmcached.wire.shown_url import shown_url

Detail = str | int | float | bool | list[str]


class MmcachedError(Exception):
    """The base of all errors that mmcached raises deliberately.

    Attributes:
        code: Stable name of the class, sent between processes.
        retryable: Whether the same call may succeed later without any change.
        details: The numbers of the case, by name.
    """

    code: ClassVar[str] = "error"
    retryable: bool = False

    def __init__(self, message: str, **details: Detail) -> None:
        super().__init__(message)
        self.details: dict[str, Detail] = details


class CacheMiss(MmcachedError):
    """The receiver does not hold these items; send them again with their data.

    To a client it names the ids of images that were sent without a file.
    """

    code = "cache_miss"
    retryable = True

    def __init__(self, mm_hashes: Sequence[str]) -> None:
        hashes = list(mm_hashes)
        super().__init__(f"{len(hashes)} item(s) are not cached here: {hashes}; resend their data", mm_hashes=hashes)

    @property
    def mm_hashes(self) -> list[str]:
        hashes = self.details["mm_hashes"]
        return list(hashes) if isinstance(hashes, list) else []


class ItemTooLarge(MmcachedError, ValueError):
    """The item exceeds a fixed limit; it will never fit."""

    code = "item_too_large"

    def __init__(self, nbytes: int, limit: int, field: str = "item") -> None:
        super().__init__(
            f"{field} has {nbytes} bytes, the limit is {limit}; it travels inline, or raise the limit",
            field=field,
            nbytes=nbytes,
            limit=limit,
        )


class CacheFull(MmcachedError):
    """Nothing can be evicted now; the item fits once readers have given leases back."""

    code = "cache_full"
    retryable = True

    def __init__(self, nbytes: int, capacity: int, pinned_bytes: int) -> None:
        super().__init__(
            f"no room for {nbytes} bytes: {pinned_bytes} of {capacity} bytes are leased or pinned; send it inline",
            nbytes=nbytes,
            capacity=capacity,
            pinned_bytes=pinned_bytes,
        )


class ChecksumMismatch(MmcachedError):
    """The bytes of a chunk are not those that its writer stored: another process has written, or memory is faulty."""

    code = "checksum_mismatch"
    retryable = True

    def __init__(self, slot: int, found: int, expected: int) -> None:
        super().__init__(
            f"slot {slot} has checksum {found:#010x}, expected {expected:#010x}; resend, and check for other writers",
            slot=slot,
            found=found,
            expected=expected,
        )


class StaleHandle(MmcachedError):
    """The chunk that this handle names has new content."""

    code = "stale_handle"
    retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(f"stale handle: {reason}; ask the sender for a fresh one", reason=reason)


class MissingRows(MmcachedError):
    """Rows behind a hit were never written: the usable prefix ends at position `first`. Recompute the rest."""

    code = "missing_rows"
    retryable = True

    def __init__(self, key: str, first: int, end: int) -> None:
        super().__init__(
            f"rows [{first}, {end}) of {key!r} were never written; the usable prefix has {first} rows",
            key=key,
            first=first,
            end=end,
        )


class LayoutMismatch(MmcachedError):
    """The segment was written by another layout version, or its header contradicts its announcement."""

    code = "layout_mismatch"

    def __init__(
        self, field: str, value: Detail, expected: Detail, next_step: str = "restart both sides with one version"
    ) -> None:
        super().__init__(
            f"segment header: {field} is {value!r}, expected {expected!r}; {next_step}",
            field=field,
            value=value,
            expected=expected,
        )

    @classmethod
    def unless_equal(cls, field: str, value: int | str, expected: int | str, *next_step: str) -> None:
        if value != expected:
            raise cls(field, value, expected, *next_step)


class SegmentError(MmcachedError):
    """A shared-memory segment could not be created, opened or locked; the text gives the next step."""

    code = "segment_error"


class ProtocolError(MmcachedError):
    """A process broke the protocol: this one (`LocalProtocolError`) or the peer (`RemoteProtocolError`)."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """This process tried to send a message that is not allowed now: a bug on this side."""

    code = "local_protocol_error"


class RemoteProtocolError(ProtocolError):
    """The peer sent a message that does not validate. It changed nothing; `field` is the path inside it."""

    code = "remote_protocol_error"

    def __init__(self, reason: str, field: str = "$") -> None:
        super().__init__(f"invalid message at {field}: {reason}", reason=reason, field=field)


class PeerGone(MmcachedError):
    """The other process is not connected, or has died."""

    code = "peer_gone"
    retryable = True


class ChannelFull(MmcachedError):
    """The peer does not take messages fast enough; nothing was queued."""

    code = "channel_full"
    retryable = True


class ServiceUnavailable(MmcachedError):
    """The service is not running, not ready yet, or draining. Try again later."""

    code = "service_unavailable"
    retryable = True


class DeadlineExceeded(MmcachedError):
    """The answer did not come in time; the work was abandoned."""

    code = "deadline_exceeded"
    retryable = True

    def __init__(self, operation: str, timeout_s: float) -> None:
        super().__init__(f"{operation}: no answer within {timeout_s} s", operation=operation, timeout_s=timeout_s)


class RequestAborted(MmcachedError):
    """The request was ended early, by a cancel or by a process that died."""

    code = "request_aborted"
    retryable = True


class ClientClosed(MmcachedError):
    """The client was closed, or an `AsyncClient` is used outside `async with`; a retry cannot help."""

    code = "client_closed"

    def __init__(self, reason: str = "the client is closed") -> None:
        super().__init__(reason)


class ComputationFailed(MmcachedError):
    """The model could not compute the request: memory was not enough, or an operation failed."""

    code = "computation_failed"

    def __init__(self, error: str, *, retryable: bool = False) -> None:
        super().__init__(f"the model could not compute it: {error}; the service's log says where", error=error)
        self.retryable = retryable


class PoisonousRequest(MmcachedError):
    """Workers died while they computed this request, the last time with no other request; it is not retried."""

    code = "poisonous_request"

    def __init__(self, num_deaths: int, limit: int) -> None:
        super().__init__(
            f"a worker died {num_deaths} times while it computed this request "
            f"(limits.max_deaths_per_request = {limit}); it is not tried again: the service's log says how they died",
            num_deaths=num_deaths,
            limit=limit,
        )


class SecondLevelNotFlushed(MmcachedError):
    """The service is flushed, but its second level is not, as far as is known.

    The flush is retried, and nothing is fetched from the second level until it has succeeded. Other hosts may still
    find its records.
    """

    code = "second_level_not_flushed"
    retryable = True

    def __init__(self, error: str) -> None:
        reason = f"the service is flushed, its second level is not: {error}; nothing is fetched until it is"
        super().__init__(reason, error=error)


class InvalidRequest(MmcachedError, ValueError):
    """The request can never be served as it is; names the field, the value and the limit."""

    code = "invalid_request"

    def __init__(self, field: str, value: Detail, limit: str) -> None:
        super().__init__(f"{field} = {value!r}: {limit}", field=field, value=value, limit=limit)


class EmptyImage(InvalidRequest):
    code = "empty_image"


class CorruptImage(InvalidRequest):
    """The image cannot be decoded: damaged, or of an unknown format."""

    code = "corrupt_image"


class ImageTooLarge(InvalidRequest):
    """An image with more pixels, or more encoded bytes, than the service accepts."""

    code = "image_too_large"


class EmptyClip(InvalidRequest):
    code = "empty_clip"


class CorruptClip(InvalidRequest):
    """The video or sound cannot be decoded: damaged, or of an unknown format."""

    code = "corrupt_clip"


class ClipTooLarge(InvalidRequest):
    """A video or sound with more bytes, seconds, frames, pixels or channels than the service accepts."""

    code = "clip_too_large"


class ConfigError(InvalidRequest):
    """An invalid setting. A URL is shown without its password."""

    code = "config_error"

    def __init__(self, field: str, value: Detail, limit: str) -> None:
        super().__init__(field, shown_url(value) if isinstance(value, str) and "://" in value else value, limit)


class InvariantError(MmcachedError):
    """mmcached's own state is inconsistent: a bug in mmcached. Please report it."""

    code = "invariant_error"


class ErrorInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    code: str
    message: str
    retryable: bool
    details: dict[str, Detail]


def error_to_wire(error: MmcachedError) -> ErrorInfo:
    return ErrorInfo(error.code, str(error), error.retryable, error.details)


def error_from_wire(info: ErrorInfo) -> MmcachedError:
    """Rebuild the error; an unknown code becomes a plain `MmcachedError`, as retryable as it was."""
    cls = {cls.code: cls for cls in _classes_of(MmcachedError)}.get(info.code, MmcachedError)
    error = cls.__new__(cls)
    MmcachedError.__init__(error, info.message, **info.details)
    error.retryable = info.retryable
    return error


def copy_of(error: MmcachedError) -> MmcachedError:
    """Return an equal error, since raising an error changes it."""
    return error_from_wire(error_to_wire(error))


def _classes_of(base: type[MmcachedError]) -> Iterator[type[MmcachedError]]:
    yield base
    for cls in base.__subclasses__():
        yield from _classes_of(cls)
