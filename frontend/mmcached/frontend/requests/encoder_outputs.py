"""Encoder outputs in the store: says of each item whether an engine loads it, or encodes it, or its request waits.

    in the store                                         loaded: nothing of the item is processed, unless its engine
                                                         would hold more than a reader of the store may: then encoded
    an open request of another engine has it encoded     the request waits, for `output_wait_s` at most
    the engine says that it has it in its own cache      nobody encodes it, and nobody waits but for an answer's name
    the second level may have it                         the request waits until it has been fetched, or cannot be: once
    else                                                 this request's engine encodes and saves it: the request owns it

    owned ──put: kept──> gone, those who wait go on and find it
      ├──put: refused──> gone, those who wait have it encoded, all at once
      └──the owner has ended──> for a moment, in which the put may come; then gone, and the first who waits owns it

A look takes no lease: the engine does, and has the request sent again if the output has gone meanwhile. Requests of one
engine never wait for each other; it encodes an item once for all of them. An answer that names outputs waits for their
puts in the same way. Who waits for several waits for the last one: they come in order, and whoever is woken looks for
all of them.

Knows nothing of sockets and pixels. Invariant: who waits does so for a key that somebody owns, or that is fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from mmcached.cache.checkpoints.checkpoint import max_embeds_per_item
from mmcached.cache.store_keys import output_key, store_key
from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.frontend.store.fetch_table import Parked, Wanted
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevel
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.frontend import Encode

GRACE_S = 0.5
"""How long a put may take that comes behind the answer to the request for which it was encoded."""
MAX_REFUSED = 256
"""Names of refused records that are remembered for an answer which names them."""


@dataclass(slots=True)
class _Owner:
    number: int
    engine: int
    has_it: bool = False
    until: float = inf


class EncoderOutputs:
    """Who has what encoded, and who waits for it; requests by number, engines by incarnation."""

    def __init__(
        self,
        config: ServiceConfig,
        records: RecordStore,
        connections: EngineConnections,
        second_level: SecondLevel,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._is_on = config.shares_encoder_outputs
        self._wait_s = config.limits.output_wait_s
        self._max_embeds = max_embeds_per_item(config)
        self._records = records
        self._connections = connections
        self._second_level = second_level
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        self._refused: dict[str, None] = {}  # lately, of nobody that was known
        self._waiting: dict[int, str] = {}  # number -> name of what it waits for
        self._give_up_at: dict[int, float] = {}
        self._ready: dict[int, None] = {}
        self._number_to_fetch: dict[int, bool] = {}  # whether it is under way
        self._quota_bytes = config.store_client_quota_bytes
        self._number_to_loaded: dict[int, tuple[int, int]] = {}  # incarnation of the engine, bytes
        self.num_waits = 0

    @property
    def store_epoch(self) -> int:
        """The epoch in which engines save what they encode; 0: they do not."""
        is_saved = self._is_on and self._connections.encoder_fingerprint and self._records.ring.announcement is not None
        return self._records.epoch if is_saved else 0

    def look(self, request: OpenRequest) -> dict[str, int]:
        """Return key -> number of embeddings, of items whose output is in the store. One that is sent again has
        everything encoded.
        """
        found = {}
        for key, _, output in self._names(request):
            num_embeds = self._records.num_rows(request.message.tenant, output)
            if 0 < num_embeds <= self._max_embeds:
                found[key] = num_embeds
        return found

    def has_to_fetch(self, request: OpenRequest, stored: Container[str]) -> bool:
        """Return whether a request waits for what the second level may have; `take_ready` will name it. It does so
        once.

        Args:
            stored: from `look`.
        """
        number, tenant = request.number, request.message.tenant
        if number not in self._number_to_fetch and self._second_level.is_open:
            missing = [
                Wanted(name, tenant, output)
                for key, name, output in self._names(request)
                if key not in stored and name not in self._owners
            ]
            parked = Parked("", number, b"", partial(self._fetched, number), waits_elsewhere=True)
            self._number_to_fetch[number] = self._second_level.park(parked, missing, claims=True)
        return self._number_to_fetch.get(number, False)

    def _fetched(self, number: int) -> None:
        if self._number_to_fetch.get(number):
            self._number_to_fetch[number] = False
            self._ready[number] = None

    def loadable(self, request: OpenRequest, stored: Mapping[str, int]) -> dict[str, int]:
        """Return those of the stored outputs that some engine may lease beside what it holds already, the first ones.

        Args:
            stored: from `look`.
        """
        held = Counter(dict.fromkeys((each.incarnation for each in self._connections.ready()), 0))
        for engine, num_bytes in self._number_to_loaded.values():
            held[engine] += num_bytes
        room, found = self._quota_bytes - min(held.values(), default=0), {}
        for key, num_bytes in self._stored_bytes(request, stored):
            room -= num_bytes
            if room < 0:
                break
            found[key] = stored[key]
        return found

    def has_to_wait(self, request: OpenRequest, engine: int, stored: Container[str]) -> bool:
        """Return whether a request for an engine waits for what another one encodes; `take_ready` will name it.

        Args:
            stored: from `look`.
        """
        now = self._clock()
        for key, name, _ in reversed([*self._names(request)]):
            owner = self._owners.get(name)
            if (
                key in stored
                or owner is None
                or owner.has_it
                or engine == owner.engine
                or request.number == owner.number
            ):
                continue
            if now < self._give_up_at.setdefault(request.number, now + self._wait_s):
                self.num_waits += 1
                self._waiting[request.number] = name
                return True
        return False

    def are_all_in(self, request: OpenRequest, stored: Container[str]) -> bool:
        """Return whether a request for outputs needs no engine: its client finds them all.

        Args:
            stored: from `look`.
        """
        return _names_outputs(request) and all(key in stored for key in request.keys) and not request.has_names

    def keys(self, request: OpenRequest) -> list[str]:
        """Return the keys in the store of a request's outputs."""
        return [output_key(self._connections.encoder_fingerprint, key) for key in request.keys]

    def expect(self, request: OpenRequest, keys: Iterable[str]) -> None:
        """Take note that records are being put for a request, unless they have come, or were lately refused."""
        for key in keys:
            name = store_key(request.message.tenant, key)
            if name not in self._refused and not self._records.has(request.message.tenant, key):
                self._owners.setdefault(name, _Owner(request.number, 0, has_it=True))

    def have_to_come(self, request: OpenRequest, keys: Sequence[str]) -> bool:
        """Return whether a request waits for outputs that are being put; `take_ready` will name it."""
        now, tenant = self._clock(), request.message.tenant
        for key in reversed(keys):
            name = store_key(tenant, key)
            if name not in self._owners or self._records.has(tenant, key):
                continue
            if now < self._give_up_at.setdefault(request.number, now + self._wait_s):
                self._waiting[request.number] = name
                return True
        return False

    def have_come(self, request: OpenRequest, keys: Iterable[str]) -> bool:
        """Return whether the store has all of these outputs."""
        return all(self._records.has(request.message.tenant, key) for key in keys)

    def is_waiting(self, number: int) -> bool:
        return number in self._waiting

    def sent(self, request: OpenRequest, connection: EngineConnection, stored: Container[str]) -> None:
        """Take note that a request is with an engine, which encodes all but what it loads, or has in its own cache."""
        self._give_up_at.pop(request.number, None)
        if num_bytes := sum(num_bytes for _, num_bytes in self._stored_bytes(request, stored)):
            self._number_to_loaded[request.number] = connection.incarnation, num_bytes
        for key, name, output in self._names(request):
            has_it = connection.held.has_item(key)
            if key in stored or (has_it and not _names_outputs(request)):
                continue
            if self._records.has(request.message.tenant, output):
                continue  # it was not loadable: nothing is put
            owner = self._owners.get(name)
            if owner is None or (owner.has_it and not has_it):
                self._owners[name] = _Owner(request.number, connection.incarnation, has_it)

    def leave(self, number: int, *, has_ended: bool = True) -> None:
        """Forget a request that waits for nothing any more.

        Args:
            has_ended: what it had encoded may be put in a moment; else it never was.
        """
        self._waiting.pop(number, None)
        self._ready.pop(number, None)
        self._give_up_at.pop(number, None)
        self._number_to_fetch.pop(number, None)
        self._number_to_loaded.pop(number, None)
        until = self._clock() + GRACE_S if has_ended else -inf
        for owner in self._owners.values():
            if owner.number == number:
                owner.until = min(owner.until, until)

    def put(self, name: str, is_kept: bool) -> None:
        """Take note that the store was offered a record under a name; those of others change nothing."""
        if self._owners.pop(name, None) is None:
            if not is_kept:
                self._refused[name] = None
                if len(self._refused) > MAX_REFUSED:
                    del self._refused[next(iter(self._refused))]
            return
        for number in self._release(name):
            if not is_kept:
                self._give_up_at[number] = -inf

    def flush(self) -> None:
        """Let nobody wait for what was begun until now."""
        self._owners.clear()
        self._ready |= dict.fromkeys(self._waiting)
        self._waiting.clear()

    def check(self, now: float) -> None:
        """Look at deadlines."""
        for name in [name for name, owner in self._owners.items() if owner.until <= now]:
            del self._owners[name]
            self._release(name)
        for number in [number for number in self._waiting if self._give_up_at[number] <= now]:
            del self._waiting[number]
            self._ready[number] = None

    def take_ready(self) -> list[int]:
        """Return and forget the requests that need wait no more."""
        ready, self._ready = self._ready, {}
        return list(ready)

    def numbers(self) -> set[int]:
        """Return the requests of which something is noted that only an open one needs."""
        return {*self._waiting, *self._give_up_at, *self._ready, *self._number_to_fetch, *self._number_to_loaded}

    def check_integrity(self) -> None:
        """Raise `InvariantError` if somebody waits for what nobody owns."""
        if lost := {name for name in self._waiting.values() if name not in self._owners}:
            raise InvariantError(f"{len(lost)} encoder outputs are waited for, but nobody has them encoded")

    def _names(self, request: OpenRequest) -> Iterable[tuple[str, str, str]]:
        """Yield key, name in the store and output key, each once, of items whose output may be in the store."""
        fingerprint = self._connections.encoder_fingerprint
        if not self._is_on or not fingerprint or request.num_resends:
            return
        keys = (key for medium, key in request.items if medium.name is None)
        for key in dict.fromkeys(keys):
            output = output_key(fingerprint, key)
            yield key, store_key(request.message.tenant, output), output

    def _stored_bytes(self, request: OpenRequest, stored: Container[str]) -> Iterable[tuple[str, int]]:
        """Yield key and bytes of each output that is stored, in prompt order."""
        for key, _, output in self._names(request):
            if key in stored and (place := self._records.find(request.message.tenant, output)) is not None:
                yield key, place.nbytes

    def _release(self, name: str) -> list[int]:
        released = [number for number, waits_for in self._waiting.items() if waits_for == name]
        for number in released:
            del self._waiting[number]
            self._ready[number] = None
        return released


def _names_outputs(request: OpenRequest) -> bool:
    """Return whether a request's outputs are saved, wherever they come from, to be named in its answer."""
    return isinstance(request.message, Encode) and request.takes_keys
