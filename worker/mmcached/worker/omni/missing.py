"""What a merge says when rows behind a hit were never written.

Knows nothing of where rows lie. The error carries all that the merge has found, so that one request without its
prefix costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mmcached.wire.errors import MissingRows


class MissingRun(NamedTuple):
    """Positions `[first, end)` of a request's `key` are the first run of them that was not written."""

    request_id: str
    key: str
    first: int
    end: int


class MissingPrefix(MissingRows):
    """A hit's rows are not all there.

    To go on: hand out `merged`; compute each request of `missing` again, from position `first` at the latest.

    Attributes:
        merged: what the call would have returned, without what is missing.
        missing: of each request and key that lacks rows the first run, in the order of requests.
        details: of the first of these `request_id`, `key`, `first` and `end`.
    """

    code = "missing_prefix"
    # An error that came over a wire has its details only.
    merged: Mapping[str, Any] = {}
    missing: Sequence[MissingRun] = ()

    def __init__(self, missing: Sequence[MissingRun], merged: Mapping[str, Any]) -> None:
        request_id, key, first, end = missing[0]
        super().__init__(key, first, end)
        more = f"; {len(missing) - 1} more in `missing`" if len(missing) > 1 else ""
        self.args = (f"request {request_id}: {self.args[0]}{more}",)
        self.details["request_id"] = request_id
        self.merged = merged
        self.missing = tuple(missing)
