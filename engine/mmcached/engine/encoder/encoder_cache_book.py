"""What the scheduler asks of the books of the encoder cache, whatever the scope of their entries.

Two exist: `EncoderCacheManager` (an entry belongs to one request) and `SharedEncoderCacheManager` (to the content).
The tensors lie in the workers under the same keys; these books decide when they are made and dropped.

    (absent) --allocate--> RESERVED --commit--> READY --evict, or free--> (absent), told to the workers by `take_freed`
                              |
                              +--withdraw, or last reference freed--> (absent), told to the workers too

RESERVED: the step that is being scheduled will encode it. Everybody in that step may refer to it, since a worker
encodes before it reads. Outside a step an allocation is READY at once (the seed's face). Sizes count embeddings.

`new_epoch` (the weights have changed) makes all entries old. An old entry is found by nobody; whoever refers to it
already goes on with it, under its old key, and its last reference ends it.

A reference is that of one item of one request. Whatever is released twice, or was never held, changes nothing: so a
caller that releases all items after every step, as one does for encoder-decoder models, gains no space by it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from mmcached.engine.steps.request import Request
from mmcached.wire.stats import EncoderCacheStats

EncoderCacheScope = Literal["shared", "request"]


class ReservedInput(NamedTuple):
    """An entry that the open step must encode, and one of the items that refer to it."""

    key: str
    request_id: int
    input_id: int


class EncoderCacheBook(Protocol):
    """Entries by key, each referred to by items of requests. `input_id` is an item's index in its request.

    Questions change nothing: an answer holds until the next call that does. Where an item's entry is looked for, one of
    the same content but another number of embeddings is an `InvalidRequest`, and nothing has changed: contents are
    named by clients, and only the request that names wrongly may fail.
    """

    @property
    def cache_size(self) -> int: ...

    @property
    def epoch(self) -> int:
        """How often `new_epoch` was called."""

    @property
    def num_free_slots(self) -> int:
        """Embeddings that fit without evicting anything."""

    @property
    def num_freeable_slots(self) -> int:
        """Embeddings that fit if everything without reference is evicted."""

    # ---- questions

    def entry_key(self, request: Request, input_id: int) -> str:
        """Return the key under which workers keep this item's output: that of the entry it refers to, if any."""

    def has_cache(self, request: Request, input_id: int) -> bool:
        """Whether the item need not be encoded: it refers to an entry, or there is one that it may refer to.

        Raises:
            InvalidRequest: that entry has another number of embeddings.
        """

    def get_cached_num_encoder_embeds(self, request: Request, input_id: int) -> int | None:
        """Return the size of the item's entry, whatever the item's own, or None if there is none."""

    def num_embeds_to_pin(self, request: Request, input_id: int) -> int:
        """Return by how much `num_freeable_slots` shrinks if the item refers to its entry."""

    def can_allocate(
        self,
        request: Request,
        input_id: int,
        encoder_compute_budget: int | None = None,
        num_embeds_to_schedule: int = 0,
    ) -> bool:
        """Whether an entry for the item fits beside what is decided already; see also `num_embeds_to_pin`.

        Args:
            encoder_compute_budget: embeddings that may still be computed in this step; None for any number.
            num_embeds_to_schedule: space that the decided but not yet allocated items will take.
        """

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """Return the items of a request that refer to an entry, in a set of the caller's own."""

    # ---- references and entries

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """Refer to the item's entry if there is one; return whether. A second reference of an item changes nothing.

        Raises:
            InvalidRequest: that entry has another number of embeddings.
        """

    def allocate(self, request: Request, input_id: int) -> None:
        """Make the item's entry and refer to it, evicting what is needed.

        Raises:
            InvalidRequest: there is one with another number of embeddings.
            LocalProtocolError: it is there already, or does not fit; nothing has changed.
        """

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """Drop one item's reference. Not held: nothing changes."""

    def free(self, request: Request) -> None:
        """Drop all references of a request."""

    def take_freed(self) -> list[str]:
        """Return and clear the keys that workers must drop before the next step encodes.

        A key that was dropped and is present again is left out: the step encodes it anew in its place.
        """

    def new_epoch(self) -> int:
        """Make all entries old, those of an open step too, and return the number of the epoch that begins.

        What nobody refers to is dropped at once. Entries of different epochs never have the same key.
        """

    def reset(self) -> None:
        """Forget everything, references and an open step included; the workers are told to clear by other means."""

    # ---- steps

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

    # ---- looking in

    def holders(self) -> set[int]:
        """Return the ids of the requests that refer to an entry."""

    def ready_keys(self) -> set[str]:
        """Return the keys that every worker holds after a committed step."""

    def lingering_keys(self) -> set[str]:
        """Return the keys without entry that a worker may still hold, for it has not, or not surely, been told."""

    def stats(self) -> EncoderCacheStats: ...

    def check_integrity(self) -> None:
        """Raise `InvariantError` if the counts contradict the entries."""
