"""Cuts clips into slices and decodes slices: two jobs for threads, with a lookup in the store between them.

    plan ──> places of the slices ──> which of them are in the store? ──> decode the others ──> their items
                                                └── all: nothing is decoded

If the slices of a clip are known, only those are decoded whose items are neither cached nor encoded.

`ClipWork` belongs to the loop's thread; the jobs that it returns run in any thread.
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
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.gateway.processing.slice_processor import SlicePlace
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.wire.errors import ClipTooLarge, InvariantError
from mmcached.wire.messages.parts import ClipOptions

Job = Callable[[IsWanted], object]


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """The places of a clip's slices in its file."""

    places: Sequence[SlicePlace]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Slices by index, and their items by key."""

    slices: Mapping[int, Slice]
    items: Mapping[str, GatewayItem]


@dataclass(frozen=True, slots=True)
class Cut:
    """The slices of a clip, and the items of those that were decoded."""

    slices: Sequence[Slice]
    items: Mapping[str, GatewayItem]


class ClipWork:
    """The clips that are being cut, by the key of the work.

    Args:
        max_bytes: Maximum bytes of the items of one clip.
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
        """Return the number of planned clips that are being decoded."""
        return len(self._plans)

    def planned(self) -> list[str]:
        """Return the keys of the works that are planned and not finished."""
        return list(self._plans)

    def plan(self, medium: Medium) -> Job:
        """Return the job that finds the places of a clip's slices."""
        return partial(self._plan, medium)

    def decode(self, medium: Medium, tenant: str, wanted: Sequence[int]) -> Job:
        """Return the job that makes some of a clip's slices."""
        return partial(self._decode, medium, tenant, wanted)

    def go_on(self, key: str, planned: ClipPlan, medium: Medium, tenant: str) -> Job | Cut:
        """Return the next job for a thread, or the clip if nothing has to be decoded."""
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
        """Return the clip whose slices were decoded, and keep the list of its slices in the store."""
        planned = self._plans.pop(key, None)
        if planned is None:
            return Cut((), decoded.items)
        places, known, epoch = planned
        for index, made in decoded.slices.items():
            name = self._processing.slice_record(medium.file_key, places[index].place)
            self._records.put_slice(tenant, name, made, epoch=epoch)
        return self._cut(medium, tenant, Decoded({**known, **decoded.slices}, decoded.items), epoch=epoch)

    def forget(self, key: str) -> None:
        """Forget work that has ended in another way."""
        self._plans.pop(key, None)

    def close(self) -> None:
        self._decoders.close()

    def _cut(self, medium: Medium, tenant: str, whole: Decoded, *, epoch: int) -> Cut:
        slices = [whole.slices[index] for index in sorted(whole.slices)]
        self._records.put(tenant, medium.key, slices, epoch=epoch)
        return Cut(slices, whole.items)

    # ---- in a thread

    def _plan(self, medium: Medium, is_wanted: IsWanted) -> ClipPlan:
        return ClipPlan(self._decoders.plan(medium.data, _options(medium), is_wanted))

    def _decode(self, medium: Medium, tenant: str, wanted: Sequence[int], is_wanted: IsWanted) -> Decoded:
        slices: dict[int, Slice] = {}
        items: dict[str, GatewayItem] = {}
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
