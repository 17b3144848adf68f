"""Which generations are streamed, and how much of each the frontend has been told.

    open --> (commit: untold --sent--> told)* --> forget         the answer brings what the last step added

One message carries what a step has added to all of them; for 256, one for each would cost more than twenty times as
much. A message that could not be queued is not told, so what it carried comes with the next; if none follows, with the
answer. Output tokens survive preemption, withdrawal and the loss of a worker, so a position is told once, and no other
token is ever told for it. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmcached.engine.steps.request import Request
from mmcached.wire.messages.frontend import CommittedTokens


class TokenStreams:
    """The streamed generations of one engine, by request id."""

    def __init__(self) -> None:
        self._num_told: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._num_told)

    def open(self, request_id: int) -> None:
        """Stream a generation from its first token on."""
        self._num_told[request_id] = 0

    def forget(self, request_id: int) -> None:
        """It is answered, or over. An unknown one changes nothing."""
        self._num_told.pop(request_id, None)

    def untold(self, requests: Iterable[Request]) -> list[CommittedTokens]:
        """Return what the frontend has not been told of those of them that are streamed. Changes nothing."""
        return [
            CommittedTokens(request.request_id, num_told, request.token_ids[request.num_prompt_tokens + num_told :])
            for request in requests
            if (num_told := self._num_told.get(request.request_id)) is not None
            and request.num_prompt_tokens + num_told < request.num_tokens  # none of who was set back in this step
        ]

    def told(self, streams: Iterable[CommittedTokens]) -> None:
        """The frontend's queue has them."""
        for stream in streams:
            self._num_told[stream.request_id] = stream.first + len(stream.token_ids)
