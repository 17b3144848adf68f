"""Has clips cut into slices, and slices decoded: two jobs for threads, with a look into the store between them.

    plan ──> where each slice lies ──> which of them does the store know by place? ──> decode the others ──> their items
                                                └── all: nothing is decoded

A clip whose slices are known, some of whose items are neither cached nor encoded, has those decoded alone.

Knows nothing of requests and flights. `ClipWork` belongs to the loop's thread, what it makes for threads to any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium, Slice
from mmcached.gateway.processing.pool import IsWanted
from mmcached.gateway.processing.processor import Processed
from mmcached.gateway.processing.slice_processor import SlicePlace
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.wire.errors import ClipTooLarge, InvariantError
from mmcached.wire.messages.parts import ClipOptions

Job = Callable[[IsWanted], object]


@dataclass(frozen=True, slots=True)
class Planned:
    """Where the slices of a clip lie."""

    places: Sequence[SlicePlace]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Slices by index, and their items by key."""

    slices: Mapping[int, Slice]
    items: Mapping[str, Processed]


@dataclass(frozen=True, slots=True)
class Cut:
    """What has become of a clip: its slices, and the items of those that were decoded for it."""

    slices: Sequence[Slice]
    items: Mapping[str, Processed]


class ClipWork:
    """The clips that are being cut, by the key of that work.

    Args:
        max_bytes: items of one clip, all slices together.
    """

    def __init__(
        self, processing: Processing, records: ClipRecords, decoders: ClipDecoderPool, *, max_bytes: int
    ) -> None:
        self._processing = processing
        self._records = records
        self._decoders = decoders
        self._max_bytes = max_bytes
        self._plans: dict[str, tuple[Sequence[SlicePlace], dict[int, Slice], int]] = {}

    def __len__(self) -> int:
        """Return how many clips are being decoded whose places are known."""
        return len(self._plans)

    def planned(self) -> list[str]:
        """Return the works that have been planned, and not finished."""
        return list(self._plans)

    def plan(self, medium: Medium) -> Job:
        """Return the job that finds out where the slices of a clip lie."""
        return partial(self._plan, medium)

    def decode(self, medium: Medium, tenant: str, wanted: Sequence[int]) -> Job:
        """Return the job that makes some of a clip's slices."""
        return partial(self._decode, medium, tenant, wanted)

    def go_on(self, key: str, planned: Planned, medium: Medium, tenant: str) -> Job | Cut:
        """Return what a thread has to do next, or that nothing has to be decoded."""
        known: dict[int, Slice] = {}
        for index, each in enumerate(planned.places):
            name = self._processing.slice_record(medium.file_key, each.place)
            if (found := self._records.slice(tenant, name)) is not None:
                known[index] = found._replace(start_s=each.start_s, end_s=each.end_s)
        wanted = [index for index in range(len(planned.places)) if index not in known]
        if not wanted:
            return self._cut(medium, tenant, Decoded(known, {}), epoch=self._records.epoch)
        self._plans[key] = planned.places, known, self._records.epoch
        return self.decode(medium, tenant, wanted)

    def finish(self, key: str, decoded: Decoded, medium: Medium, tenant: str) -> Cut:
        """Return the clip of which slices have been decoded, and keep in the store what it consists of."""
        planned = self._plans.pop(key, None)
        if planned is None:
            return Cut((), decoded.items)
        places, known, epoch = planned
        for index, made in decoded.slices.items():
            name = self._processing.slice_record(medium.file_key, places[index].place)
            self._records.put_slice(tenant, name, made, epoch=epoch)
        return self._cut(medium, tenant, Decoded({**known, **decoded.slices}, decoded.items), epoch=epoch)

    def forget(self, key: str) -> None:
        """Forget work that has ended otherwise."""
        self._plans.pop(key, None)

    def close(self) -> None:
        self._decoders.close()

    def _cut(self, medium: Medium, tenant: str, whole: Decoded, *, epoch: int) -> Cut:
        slices = [whole.slices[index] for index in sorted(whole.slices)]
        self._records.put(tenant, medium.key, slices, epoch=epoch)
        return Cut(slices, whole.items)

    # ---- in a thread

    def _plan(self, medium: Medium, is_wanted: IsWanted) -> Planned:
        return Planned(self._decoders.plan(medium.data, _options(medium), is_wanted))

    def _decode(self, medium: Medium, tenant: str, wanted: Sequence[int], is_wanted: IsWanted) -> Decoded:
        slices: dict[int, Slice] = {}
        items: dict[str, Processed] = {}
        num_bytes = 0
        with closing(self._decoders.decode(medium.data, _options(medium), wanted, is_wanted)) as decoding:
            for decoded in decoding:
                key, item = self._processing.slice_item(decoded, medium.modality, tenant)
                num_bytes += item.encoded.nbytes if key not in items else 0
                if num_bytes > self._max_bytes:
                    limit = f"at most {self._max_bytes} bytes (limits.max_clip_slices_mb)"
                    raise ClipTooLarge(medium.modality, f"more than {num_bytes} bytes for the encoder", limit)
                items[key] = item
                slices[decoded.index] = Slice(key, item.num_embeds, decoded.start_s, decoded.end_s)
        if missing := [index for index in wanted if index not in slices]:
            raise InvariantError(f"slices {missing[:3]} were not decoded")
        return Decoded(slices, items)


def _options(medium: Medium) -> ClipOptions:
    assert medium.options is not None
    return medium.options
