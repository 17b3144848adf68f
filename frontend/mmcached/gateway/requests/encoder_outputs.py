"""Finds encoder outputs in the store: decides for each item whether an engine loads, encodes or already has its output.

    in the store                                         loaded: the item is not processed, unless its engine would
                                                         hold more than a reader of the store may: then encoded
    being encoded for a request of another engine        the request waits, for at most `output_wait_s`
    in the engine's own cache, as the engine says        not encoded, and no request waits, unless an answer names it
    perhaps in the second level                          the request waits until it has been fetched, or not: once
    otherwise                                            this request's engine encodes and saves it: the request owns it

    owned ──put: kept──> forgotten, waiting requests go on and find it
      ├──put: refused──> forgotten, waiting requests have it encoded, all at once
      └──the owner has ended──> kept for `GRACE_S`, in which the put may come; then the first waiting request owns it

A lookup takes no lease: the engine takes it, and has the request sent again if the output is gone. Requests of one
engine never wait for each other; it encodes an item once for all of them. An answer that names outputs waits for their
puts in the same way. A request that lacks several outputs waits for the last one, because they come in order, and then
looks all of them up.

Invariant: a request waits for an output that has an owner, or that is being fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from mmcached.cache.checkpoints.checkpoint import max_embeds_per_item
from mmcached.cache.store_keys import output_key, store_key
from mmcached.cache.verification import is_sampled
from mmcached.frontend.store.fetch_table import Parked, Wanted
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevelConnection
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.waits import Verb, Wait, Waits
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.frontend import Encode
from mmcached.wire.vocabulary import Modality

GRACE_S = 0.5
"""How long a put may take that comes behind the answer to the request for which it was encoded."""
MAX_REFUSED = 256
"""Names of refused records that are remembered for an answer which names them."""


@dataclass(slots=True, eq=False)
class Owner:
    """The request for which an output is being encoded, or put.

    Attributes:
        number: Number of the request.
        name: Name of the output in the store.
        engine: The engine that encodes it; None if it has only to be put.
        has_it: Whether the engine has it in its own cache, or has made it.
        until: Time in seconds on the clock at which requests stop waiting for it.
        is_refused: Whether the store has refused it.
        modality: Of the item; None if it is unknown.
    """

    number: int
    name: str
    engine: EngineConnection | None
    has_it: bool = False
    until: float = inf
    is_refused: bool = False
    modality: Modality | None = None


@dataclass(slots=True)
class Patience:
    """Limit of a request's wait for outputs; `until` in seconds on the clock, set when it first waits."""

    until: float = inf


class EncoderOutputs:
    """The outputs that are being made, with their owners.

    Attributes:
        num_waits: Number of waits for outputs of other engines; it only rises.
    """

    def __init__(
        self,
        config: ServiceConfig,
        records: RecordStore,
        connections: EngineConnections,
        second_level: SecondLevelConnection,
        waits: Waits[OpenRequest],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._is_on = config.shares_encoder_outputs
        self._wait_s = config.limits.output_wait_s
        self._max_embeds = max_embeds_per_item(config)
        self._records = records
        self._connections = connections
        self._second_level = second_level
        self._waits = waits
        self._clock = clock
        self._owners: dict[str, Owner] = {}
        self._refused: dict[str, None] = {}  # recently, without an owner
        self._quota_bytes = config.store_client_quota_bytes
        self.num_waits = 0

    @property
    def store_epoch(self) -> int:
        """The epoch in which engines save the outputs that they encode; 0: they save none."""
        is_saved = self._is_on and self._connections.encoder_fingerprint and self._records.ring.announcement is not None
        return self._records.epoch if is_saved else 0

    # ---- before a request is sent

    def look(self, request: OpenRequest) -> dict[str, int]:
        """Return key and number of embeddings of each item whose output is in the store.

        For a request that is sent again there are none: all its items are encoded. Nor for outputs that are to be
        recomputed: the worker then compares them.
        """
        found, modalities = {}, _modalities(request)
        for key, name, output in self._names(request):
            num_embeds = self._records.num_rows(request.message.tenant, output)
            if 0 < num_embeds <= self._max_embeds and not is_sampled(self._records.sample, output):
                found[key] = num_embeds
                self._records.saved.set_modality(name, modalities[key])
        return found

    def fetch(self, request: OpenRequest, stored: Container[str]) -> Verb[bool]:
        """Wait for outputs that the second level may have; return whether there were any.

        Args:
            stored: From `look`.
        """
        if not self._second_level.is_open:
            return False
        missing = [
            Wanted(name, request.message.tenant, output)
            for key, name, output in self._names(request)
            if not (key in stored or name in self._owners or self._records.has(request.message.tenant, output))
        ]
        key = "fetch", request.number
        parked = Parked("", request.number, b"", partial(self._waits.wake, key), waits_elsewhere=True)
        if not self._second_level.park(parked, missing, claims=True):
            return False
        yield Wait({key})
        return True

    def loadable(self, request: OpenRequest, stored: Mapping[str, int]) -> dict[str, int]:
        """Return the first ones of the stored outputs, as many as an engine may lease in addition to those that it
        holds.

        Args:
            stored: From `look`.
        """
        held = min((engine.loaded_bytes for engine in self._connections.ready()), default=0)
        room, found = self._quota_bytes - held, {}
        for key, num_bytes in self._stored_bytes(request, stored):
            room -= num_bytes
            if room < 0:
                break
            found[key] = stored[key]
        return found

    def made_elsewhere(
        self, request: OpenRequest, engine: EngineConnection, stored: Container[str], patience: Patience
    ) -> Owner | None:
        """Return the owner of an output that another engine encodes, for which a request for `engine` has to wait.

        Args:
            stored: From `look`.
        """
        if not self._is_patient(patience):
            return None
        for key, name, _ in reversed([*self._names(request)]):
            owner = self._owners.get(name)
            if (
                key in stored
                or owner is None
                or owner.has_it
                or owner.engine is engine
                or owner.number == request.number
            ):
                continue
            self.num_waits += 1
            return owner
        return None

    def are_all_in(self, request: OpenRequest, stored: Container[str]) -> bool:
        """Return whether a request for outputs needs no engine, because its client finds all of them in the store.

        Args:
            stored: From `look`.
        """
        return _names_outputs(request) and all(key in stored for key in request.keys) and not request.has_names

    def keys(self, request: OpenRequest) -> list[str]:
        """Return the keys in the store of a request's outputs."""
        return [output_key(self._connections.encoder_fingerprint, key) for key in request.keys]

    def stored_bytes(self, request: OpenRequest, stored: Container[str]) -> int:
        """Return the bytes of the stored outputs."""
        return sum(num_bytes for _, num_bytes in self._stored_bytes(request, stored))

    # ---- while it is made

    def own(self, request: OpenRequest, engine: EngineConnection, stored: Container[str]) -> list[Owner]:
        """Make a request the owner of the outputs that its engine encodes: all except those that it loads or already
        has.

        Returns:
            The new owners, to be ended by `disown`.
        """
        owned, modalities = [], _modalities(request)
        for key, name, output in self._names(request):
            has_it = engine.held.has_item(key)
            if key in stored or (has_it and not _names_outputs(request)):
                continue
            if self._records.has(request.message.tenant, output):
                continue  # it was not loadable: nothing is put
            owner = self._owners.get(name)
            if owner is None or (owner.has_it and not has_it):
                self._owners[name] = Owner(request.number, name, engine, has_it, modality=modalities[key])
                owned.append(self._owners[name])
                self._waits.wake(owner)  # requests that wait for the former owner wait for this one
        return owned

    def expect(self, request: OpenRequest, keys: Iterable[str]) -> list[Owner]:
        """Make a request the owner of records that are being put for its answer, except those that were put or refused.

        Returns:
            As `own`.
        """
        names = [(store_key(request.message.tenant, key), key) for key in keys]
        owned = [
            Owner(request.number, name, None, has_it=True)
            for name, key in names
            if name not in self._refused
            and name not in self._owners
            and not self._records.has(request.message.tenant, key)
        ]
        self._owners |= {owner.name: owner for owner in owned}
        return owned

    def disown(self, owned: Iterable[Owner], *, has_ended: bool) -> None:
        """End the ownership of a request's outputs; requests wait for them at most until their puts should have come.

        Args:
            has_ended: Whether the request was served, so that its outputs may still be put; else they never are.
        """
        until = self._clock() + GRACE_S if has_ended else -inf
        for owner in owned:
            owner.until = min(owner.until, until)

    def wait(self, owner: Owner, patience: Patience) -> Verb[None]:
        """Wait until an output has been put, or is no longer being made."""
        patience.until = min(patience.until, self._clock() + self._wait_s)
        yield Wait({owner}, patience.until)
        if owner.is_refused:
            patience.until = -inf

    def come(self, request: OpenRequest, keys: Sequence[str]) -> Verb[bool]:
        """Wait for records that are being put for an answer; return whether the store has all of them."""
        tenant, patience = request.message.tenant, Patience()
        while self._is_patient(patience):
            names = (store_key(tenant, key) for key in reversed(keys) if not self._records.has(tenant, key))
            owner = next((self._owners[name] for name in names if name in self._owners), None)
            if owner is None:
                break
            yield from self.wait(owner, patience)
        return all(self._records.has(tenant, key) for key in keys)

    # ---- events

    def put(self, name: str, is_kept: bool) -> None:
        """Record that the store was offered a record; names without an owner change nothing."""
        owner = self._owners.pop(name, None)
        if owner is not None:
            owner.is_refused = not is_kept
            if owner.modality is not None:
                self._records.saved.set_modality(name, owner.modality)
            self._waits.wake(owner)
        elif not is_kept:
            self._refused[name] = None
            if len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]

    def flush(self) -> None:
        """End all waits for outputs that were begun until now."""
        owners, self._owners = self._owners, {}
        for owner in owners.values():
            self._waits.wake(owner)

    def check(self, now: float) -> None:
        """Forget the owners whose time is over."""
        for owner in [owner for owner in self._owners.values() if owner.until <= now]:
            del self._owners[owner.name]
            self._waits.wake(owner)

    # ---- how

    def _is_patient(self, patience: Patience) -> bool:
        return self._wait_s > 0 and self._clock() < patience.until

    def _names(self, request: OpenRequest) -> Iterable[tuple[str, str, str]]:
        """Yield key, name in the store and output key of each item whose output may be in the store, each once."""
        fingerprint = self._connections.encoder_fingerprint
        if not self._is_on or not fingerprint or request.num_resends:
            return
        keys = (key for medium, key in request.items if medium.name is None)
        for key in dict.fromkeys(keys):
            output = output_key(fingerprint, key)
            yield key, store_key(request.message.tenant, output), output

    def _stored_bytes(self, request: OpenRequest, stored: Container[str]) -> Iterable[tuple[str, int]]:
        """Yield key and bytes of each stored output, in prompt order."""
        for key, _, output in self._names(request):
            if key in stored and (place := self._records.find(request.message.tenant, output)) is not None:
                yield key, place.nbytes


def _modalities(request: OpenRequest) -> dict[str, Modality]:
    return {key: medium.modality for medium, key in request.items}


def _is_owner(key: object) -> bool:
    return isinstance(key, Owner)


def _names_outputs(request: OpenRequest) -> bool:
    """Return whether the answer to a request names its outputs, all of which are saved."""
    return isinstance(request.message, Encode) and request.takes_keys
