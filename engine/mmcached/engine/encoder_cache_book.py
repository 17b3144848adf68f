"""What the scheduler asks of the books of the encoder cache, whatever the scope of their entries.

Two exist: `EncoderCacheManager` (an entry belongs to one request) and `SharedEncoderCacheManager` (to the content).
The tensors lie in the workers under the same keys; these books decide when they are made and dropped.

    (absent) --allocate--> RESERVED --commit--> READY --evict, or free--> (absent), told to the workers by `take_freed`
                              |
                              +--withdraw, or last reference freed--> (absent), told to the workers too

RESERVED: the step that is being scheduled will encode it. Everybody in that step may refer to it, since a worker
encodes before it reads. Outside a step an allocation is READY at once (the seed's face). Sizes count embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from mmcached.engine.request import Request
from mmcached.wire.stats import EncoderCacheStats

EncoderCacheScope = Literal["shared", "request"]


@dataclass(frozen=True, slots=True)
class ReservedInput:
    """An entry that the open step must encode, and one of the items that refer to it."""

    key: str
    request_id: int
    input_id: int


class EncoderCacheBook(Protocol):
    """Entries by key, each referred to by items of requests. `input_id` is an item's index in its request."""

    @property
    def cache_size(self) -> int: ...

    @property
    def num_free_slots(self) -> int:
        """Embeddings that fit without evicting anything."""

    @property
    def num_freeable_slots(self) -> int:
        """Embeddings that fit if everything without reference is evicted."""

    def entry_key(self, request: Request, input_id: int) -> str:
        """Return the key under which workers keep this item's output."""

    def has_cache(self, request: Request, input_id: int) -> bool:
        """Whether the item need not be encoded: its entry is READY or RESERVED. Changes nothing."""

    def num_embeds_to_pin(self, request: Request, input_id: int) -> int:
        """Return by how much `num_freeable_slots` shrinks if the item refers to its entry. Changes nothing."""

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """Refer to the item's entry if there is one; return whether. A second reference of an item changes nothing."""

    def can_allocate(
        self, request: Request, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        """Whether the item fits beside what is decided already. Changes nothing.

        Args:
            encoder_compute_budget: embeddings that may still be computed in this step.
            num_embeds_to_schedule: space that the decided but not yet allocated items will take.
        """

    def allocate(self, request: Request, input_id: int) -> None:
        """Make the item's entry and refer to it, evicting what is needed.

        Raises:
            LocalProtocolError: it is there already, or does not fit; nothing has changed.
        """

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """Drop one item's reference. Not held: nothing changes."""

    def free(self, request: Request) -> None:
        """Drop all references of a request."""

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """Return the items of a request that refer to an entry."""

    def take_freed(self) -> list[str]:
        """Return and clear the keys that workers must drop before the next step encodes.

        A key that was dropped and is present again is left out: the step encodes it anew in its place.
        """

    def reset(self) -> None:
        """Forget everything, references and an open step included; the workers are told to clear by other means."""

    def begin_step(self, step_id: int) -> None:
        """From now on, allocations are RESERVED. Raises LocalProtocolError if another step is open."""

    def commit(self, step_id: int) -> None:
        """The step was computed: RESERVED becomes READY. Raises LocalProtocolError if it is not open."""

    def withdraw(self, step_id: int) -> None:
        """The step was not computed, or only in part: what it reserved, and references to that, vanish.

        Keys that it told workers to drop are told again. Raises LocalProtocolError if it is not open.
        """

    def reserved_inputs(self) -> list[ReservedInput]:
        """Return what the open step must encode, in the order of reservation."""

    def holders(self) -> set[int]:
        """Return the ids of the requests that refer to an entry."""

    def stats(self) -> EncoderCacheStats: ...

    def check_integrity(self) -> None:
        """Raise `InvariantError` if the counts contradict the entries."""
