"""The store with one rule of its copies removed, for each rule; see `mutants`.

Needs journeys in which copies take their time and rows are deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mmcached.worker.prefix_store import KeySpec, TensorPrefixStore
from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.parcels import Parcel, Whereabouts
from mmcached.worker.prefix_store.shipments import Shipment, Shipments
from mmcached.worker.prefix_store.staging import Staging
from mmcached.worker.prefix_store.transfer import Part, Transfer
from tests.worker.prefix_store.delayed_transfer import DelayedCopy, DelayedTransfer
from tests.worker.prefix_store.journeys import MakeStore

Break = Callable[[TensorPrefixStore], None]


class SendsAliases(DelayedTransfer):
    """Looks at the rows when the copy is done."""

    def start(self, parts: Sequence[Part]) -> DelayedCopy:
        copy = super().start(parts)
        copy._sent = [pieces[0] if len(pieces) == 1 else torch.cat(list(pieces)) for _, pieces in parts]
        return copy


class KeepsAliases(DelayedTransfer):
    def clone(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def _with_transfer(transfer_class: type[DelayedTransfer]) -> MakeStore:
    def make(block_size: int, schema: Sequence[KeySpec], **options: Any) -> TensorPrefixStore:
        options["transfer_for"] = lambda device, keep_nbytes: transfer_class(lambda: 2)
        return TensorPrefixStore(block_size, schema, **options)

    return make


def _broken(how: Break) -> MakeStore:
    def make(block_size: int, schema: Sequence[KeySpec], **options: Any) -> TensorPrefixStore:
        store = TensorPrefixStore(block_size, schema, **options)
        how(store)
        return store

    return make


def _reads_what_is_not_there_yet(store: TensorPrefixStore) -> None:
    _replace(store._staging, "settle", lambda arenas, indexes: None)


def _waits_for_nothing(store: TensorPrefixStore) -> None:
    """Takes rows out of a copy that is not done."""
    shipments = store._staging.shipments

    def wait(shipment: Shipment) -> bool:
        if isinstance(shipment.copy, DelayedCopy):
            shipment.copy._sent = shipment.copy._rows
            shipment.copy.wait()
        shipments._land(shipment)
        return True

    _replace(store._staging.shipments, "_wait", wait)


def _lands_what_has_another_tenant(store: TensorPrefixStore) -> None:
    """Brings each row where it belonged when it was sent."""
    shipments = store._staging.shipments
    send, land = shipments._send_parts, shipments._land
    sent: dict[Parcel, tuple[np.ndarray, np.ndarray]] = {}

    def send_and_note(transfer: Transfer, parts: Any) -> None:
        send(transfer, parts)
        for parcel in shipments._under_way[-1].parcels if shipments._under_way else ():
            if parcel.num_live and parcel not in sent:
                live = parcel.live()
                sent[parcel] = live, parcel.whereabouts.place[live]

    def land_all(shipment: Shipment) -> None:
        for parcel, rows in zip(shipment.parcels, shipment.copy.rows(), strict=True):
            if parcel in sent and parcel.arena in store._arenas.values():
                parcel.arena.land(sent[parcel][0], rows, sent[parcel][1])
        land(shipment)

    _replace(store._staging.shipments, "_send_parts", send_and_note)
    _replace(store._staging.shipments, "_land", land_all)


def _keeps_holders_of_former_tenants(store: TensorPrefixStore) -> None:
    def forget_slots(slots: Sequence[int], arenas: Sequence[RowArena]) -> None:
        for arena in arenas:
            arena.forget_slots(list(slots))

    _replace(store._staging, "forget_slots", forget_slots)


def _lets_withdrawn_rows_come(store: TensorPrefixStore) -> None:
    _replace(store._staging, "forget_rows", lambda arena, indexes: arena.forget_rows(indexes))


def _drops_deferred_rows_at_release(store: TensorPrefixStore) -> None:
    _replace(store._staging, "flush", store._staging.drop_slots)


def _drops_what_exceeds_the_budget(store: TensorPrefixStore) -> None:
    staging = store._staging
    make_room = staging._make_room

    def make_room_and_drop(arriving: Sequence[Parcel], drafts: dict[Whereabouts, list[np.ndarray]]) -> list[Parcel]:
        drafted: dict[Whereabouts, list[np.ndarray]] = {}
        deferred = make_room(arriving, drafted)
        for whereabouts, parts in drafted.items():
            for rows in parts:
                if (whereabouts.holder[rows] < 0).any():
                    whereabouts.unbind(rows)
                else:
                    drafts.setdefault(whereabouts, []).append(rows)
        return deferred

    _replace(store._staging, "_make_room", make_room_and_drop)


def _has_no_budget(store: TensorPrefixStore) -> None:
    staging = store._staging
    make_room = staging._make_room

    def make_no_room(arriving: Sequence[Parcel], drafts: dict[Whereabouts, list[np.ndarray]]) -> list[Parcel]:
        budget, staging.device_byte_budget = staging.device_byte_budget, 1 << 60
        try:
            return make_room(arriving, drafts)
        finally:
            staging.device_byte_budget = budget

    _replace(store._staging, "_make_room", make_no_room)


def _has_no_limit(store: TensorPrefixStore) -> None:
    _replace(store._staging.shipments, "_stay_below_limit", lambda nbytes: None)


def _merges_what_is_not_there_yet(store: TensorPrefixStore) -> None:
    _replace(store._staging, "merge", lambda arena, source, target: arena.add_lacking(source, target)[1])


def _loses_its_way_when_rows_move(store: TensorPrefixStore) -> None:
    """Takes a clone for one that begins with the step's first row."""
    staging = store._staging
    keep = staging._keep

    def keep_without_base(parcel: Parcel) -> None:
        keep(parcel)
        parcel.base = 0

    _replace(store._staging, "_keep", keep_without_base)


def _replace(part: Staging | Shipments, method: str, by: Callable[..., object]) -> None:
    setattr(part, method, by)


MUTANTS_ON_THE_WAY: dict[str, MakeStore] = {
    "sends aliases": _with_transfer(SendsAliases),
    "keeps aliases": _with_transfer(KeepsAliases),
    "reads what is not there yet": _broken(_reads_what_is_not_there_yet),
    "waits for nothing": _broken(_waits_for_nothing),
    "lands what has another tenant": _broken(_lands_what_has_another_tenant),
    "keeps holders of former tenants": _broken(_keeps_holders_of_former_tenants),
    "lets withdrawn rows come": _broken(_lets_withdrawn_rows_come),
    "drops deferred rows at release": _broken(_drops_deferred_rows_at_release),
    "drops what exceeds the budget": _broken(_drops_what_exceeds_the_budget),
    "has no budget": _broken(_has_no_budget),
    "has no limit": _broken(_has_no_limit),
    "merges what is not there yet": _broken(_merges_what_is_not_there_yet),
    "loses its way when rows move": _broken(_loses_its_way_when_rows_move),
}
