"""Lease tokens: names a lease in a string that may travel to another process, and parses such strings strictly.

    <ring id>.<epoch>.<slot>.<generation>       a generation names one record for the life of its ring

All other facts that a reader needs lie in the ring, so a token contains nothing worth forging. It gives a process no
access that it lacks otherwise: a process that may map the ring may read all of it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from mmcached.client.arguments import text_of
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.handle import RingAnnouncement

MAX_EPOCH = (1 << 63) - 1
MAX_SLOT = (1 << 32) - 1
MAX_GENERATION = (1 << 62) - 1
_NUMBER = "(0|[1-9][0-9]{0,18})"
_FORM = re.compile(rf"([0-9a-f]{{32}})\.{_NUMBER}\.{_NUMBER}\.{_NUMBER}", re.ASCII)


class LeaseToken(NamedTuple):
    """A record in a ring."""

    ring_id: str
    epoch: int
    slot: int
    generation: int

    def is_of(self, ring: RingAnnouncement | None) -> bool:
        return ring is not None and (self.ring_id, self.epoch) == (ring.ring_id, ring.epoch)

    def check_slot(self, num_slots: int) -> None:
        """Raise InvalidRequest for a slot that the token's ring does not have."""
        if self.slot >= num_slots:
            raise InvalidRequest("token.slot", self.slot, f"a slot below {num_slots}")


def checked_token(token: Any) -> LeaseToken:
    """Parse a token; raise `InvalidRequest` for invalid ones."""
    text = text_of(token)
    found = None if text is None else _FORM.fullmatch(text)
    if found is None:
        shown = type(token).__name__ if text is None else text[:80]
        raise InvalidRequest(
            "token", shown.encode(errors="backslashreplace").decode(), "the `token` of a Hit, as it was"
        )
    epoch, slot, generation = map(int, found.groups()[1:])
    for field, value, least, most in (
        ("token.epoch", epoch, 0, MAX_EPOCH),
        ("token.slot", slot, 0, MAX_SLOT),
        ("token.generation", generation, 1, MAX_GENERATION),
    ):
        if not least <= value <= most:
            raise InvalidRequest(field, value, f"between {least} and {most}")
    return LeaseToken(found[1], epoch, slot, generation)
