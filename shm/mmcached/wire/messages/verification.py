"""Messages about the verification of hits: see `mmcached.cache.verification`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import Message, Text

VERIFY_S = 5.0
"""Seconds for which one `Verify` counts."""


class Verify(Message, frozen=True):
    """Have hosts recompute a share of their hits; it ends after `VERIFY_S` unless this is sent again."""

    request_id: Count
    share: Annotated[float, msgspec.Meta(ge=0, le=1)]


class Verified(Message, frozen=True):
    """A host has recomputed a hit. No answer.

    Attributes:
        difference: In what the found record differs from the recomputed one; "" if it does not.
    """

    key: Text
    tenant: Text = ""
    difference: Text = ""


class Verification(Message, frozen=True):
    """Answer to `Verify`: figures since the frontend has started.

    Attributes:
        refused: Names whose hits differed: their records are not shared until the next flush.
    """

    request_id: Count
    verified: Count
    different: Count
    refused: list[Text]
