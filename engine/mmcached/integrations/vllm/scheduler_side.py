"""Decides in the scheduler which items a step loads from the store, encodes and saves.

    before a request is scheduled   ensure_available   leases on records; claims on the rest; or: not this step
    for each of its items           has_item           is there a lease?
    an item has room                allocated          load it under its lease; without one: encode and save it
    at the end                      plan, end_pass     the plan for the workers; unused leases are given back
    a step's report has come        reported           leases that all ranks have read under go back; claims end

Invariant: an item for which `has_item` is true lies under a lease until every rank has read it. An item is looked up
only where it is not in this engine's cache, and in the part of a request that the next step can reach. A record is
validated here, once, before a worker reads it: an unusable record is a miss.

Only the names of vLLM's attributes are used here, not its classes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mmcached.client import Hit
from mmcached.integrations.record_form import PartForm
from mmcached.integrations.vllm.claims import EngineClaims
from mmcached.integrations.vllm.contact import ReconnectingClient
from mmcached.integrations.vllm.keys import Sharing
from mmcached.integrations.vllm.leases import Leases
from mmcached.integrations.vllm.messages import Load, StepOrders, StepReport
from mmcached.integrations.vllm.records import mismatch

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("vllm.mmcached")
MAX_JUDGED = 4096
"""Number of records whose validation is remembered: a waiting request is looked up in each step."""


class SchedulerSide:
    """The scheduler's half of one engine.

    Args:
        prefix: Returns the key prefix of a modality's items, by the content of the weights; "" while it is unknown.
            That of modality "" changes with each other one.
        forget_tower: Has the weights read again before the next prefix is returned.
        is_exact: Returns whether records under these prefixes equal what the engine would compute.
        claims: None to encode missing items without asking which engine encodes them.
        can_save: Whether this engine's workers save what they encode.
        is_encode_only: Whether the engine only encodes for others; it then saves its items again when the store has
            lost them.
        window: Number of tokens that a step can reach beyond the computed ones.
        can_be_encoded: Returns whether a feature has data beyond the sizes of its placeholder.
        width_of: Returns the width of an output row of a modality.
        dtype: The dtype that the model computes in.
        wait_s: How long a request whose embeddings come only from the store waits for a service at the start.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        contact: ReconnectingClient,
        prefix: Callable[[str], str],
        sharing: Sharing,
        leases: Leases,
        claims: EngineClaims | None,
        *,
        is_exact: Callable[[], bool],
        forget_tower: Callable[[], None],
        can_save: bool,
        is_encode_only: bool,
        window: int,
        can_be_encoded: Callable[[Any], bool],
        width_of: Callable[[str], int],
        dtype: torch.dtype,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contact = contact
        self._prefix = prefix
        self._is_exact = is_exact
        self._forget_tower = forget_tower
        self._sharing = sharing
        self._leases = leases
        self._claims = claims
        self._can_save = can_save
        self._is_encode_only = is_encode_only
        self._window = window
        self._can_be_encoded = can_be_encoded
        self._width_of = width_of
        self._dtype = dtype
        self._give_up_at = clock() + wait_s
        self._clock = clock
        self._former_prefix = ""
        self._local: set[str] = set()
        self._forms: dict[str, PartForm] = {}
        self._keys: dict[str, str] = {}
        self._features: dict[str, Any] = {}
        self._recomputed: set[str] = set()
        self._judged: dict[tuple[str, PartForm], str | None] = {}
        self._has_warned = False
        self._plan = StepOrders(0)
        self._encoded: list[tuple[str, str, int]] = []
        self._unavailable: set[str] = set()
        self.counts: Counter[str] = Counter()

    @property
    def is_sharing(self) -> bool:
        """Whether the service is connected, and the weights are known."""
        return self._contact.is_there and bool(self._prefix(""))

    # ---- calls of the scheduler, in their order

    def ensure_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Look up the items that a request needs next; return False if it must not be scheduled in this step."""
        self._note_prefix()
        wanted = self._wanted(request, num_computed_tokens)
        if not wanted:
            return True
        shared = {name: self._keys[name] for name in wanted if name in self._keys}
        if shared and self.is_sharing:
            self._look_up(shared)
        return all(name in self._leases for name in wanted) or self._can_do_without(request, wanted, shared)

    def has_item(self, name: str) -> bool:
        """Return whether an item that is not in the engine's cache can be loaded in this step."""
        if name in self._local and name not in self._leases and name in self._keys and self.is_sharing:
            self._local.discard(name)  # the engine has dropped the item without telling the connector
            self._look_up({name: self._keys[name]})
        return name in self._leases

    def allocated(self, request: Any, index: int) -> None:
        """Plan to load an item that was allocated, if it was found; otherwise to encode it."""
        feature = request.mm_features[index]
        name = feature.identifier
        self._local.add(name)
        hit = self._leases.use(name, self._plan.step)
        is_looked_for = self._sharing.may_share(feature) and self.is_sharing
        key = self._prefix(feature.modality) + name
        self.counts[f"queries/{feature.modality}"] += is_looked_for
        if hit is not None and hit.token is not None:
            self.counts[f"hits/{feature.modality}"] += 1
            self.counts["exact_hits"] += self._is_exact()
            self._contact.count([key])
            self._plan.loads.append(
                Load(
                    name,
                    key=key,
                    token=hit.token,
                    num_rows=request.get_num_encoder_embeds(index),
                    width=self._width_of(feature.modality),
                    request_id=request.request_id,
                    item=index,
                    can_be_encoded=self._can_be_encoded(feature),
                )
            )
            return
        self.counts[f"encodes/{feature.modality}"] += 1
        if is_looked_for and self._claims is None:  # else the service counted it when it granted the claim
            self._contact.count([key])
        if is_looked_for and self._can_save:
            self._plan.saves[name] = key
            self._encoded.append((name, request.request_id, index))
            if self._claims is not None:
                self._claims.encode(key)

    def plan(self, output: Any) -> StepOrders:
        """Return the workers' plan for a step; `end_pass` must follow."""
        plan, self._plan = self._plan, StepOrders(self._plan.step + 1)
        plan.scheduled = output.scheduled_encoder_inputs
        gone = set(output.free_encoder_mm_hashes)  # allocated and freed in the same pass
        plan.loads = [
            each._replace(is_scheduled=each.request_id in output.num_scheduled_tokens)
            for each in plan.loads
            if each.name not in gone
        ]
        return plan

    def end_pass(self, plan: StepOrders, output: Any) -> None:
        """Give back the leases that a step has not used, and the claims on items that it does not encode."""
        for name, request_id, index in self._encoded:
            if index not in plan.scheduled.get(request_id, ()):  # preempted in the same pass
                key = plan.saves.pop(name)
                if self._claims is not None:
                    self._claims.not_saved(key)
        self._encoded.clear()
        self._forms.clear()
        self._keys.clear()
        self._features.clear()
        self._recomputed.clear()
        for name in output.free_encoder_mm_hashes:
            self._local.discard(name)
            self._leases.give_back(name, plan.step)
        self._leases.end_pass(plan.step)
        if self._claims is not None:
            self._claims.end_pass()

    def take_unavailable(self) -> set[str]:
        """Return and clear the requests that must fail, because the store lacks their embeddings."""
        gone, self._unavailable = self._unavailable, set()
        return gone

    def reported(self, report: StepReport) -> None:
        """Take the workers' report: give back leases, end claims, add up figures."""
        self._leases.end_step(report.step, report.num_ranks)
        if report.is_written:
            self._forget_tower()
        self._unavailable.update(report.lost)
        self.counts.update(report.counts)
        if self._claims is not None:
            for key, outcome in report.ended:
                if outcome == "saved":
                    self._claims.saved(key)
                else:
                    self._claims.not_saved(key, is_refused=outcome == "refused")

    def close(self) -> None:
        self._contact.close()
        self._leases.clear()
        if self._claims is not None:
            self._claims.clear()

    # ---- how

    def _note_prefix(self) -> None:
        """After a change of weights forget the items of the engine."""
        prefix = self._prefix("")
        if prefix != self._former_prefix:
            self._former_prefix = prefix
            self._local.clear()
            self._leases.end_pass(self._plan.step)

    def _wanted(self, request: Any, num_computed_tokens: int) -> dict[str, int]:
        """Return the items, as index by name, that the next step may need and the engine lacks."""
        wanted: dict[str, int] = {}
        for index, feature in enumerate(request.mm_features):
            name, place = feature.identifier, feature.mm_position
            if place.offset + place.length <= num_computed_tokens:
                continue
            if place.offset >= num_computed_tokens + self._window:
                break
            if name not in wanted and name not in self._leases:
                if self._sharing.may_share(feature):
                    rows, width = request.get_num_encoder_embeds(index), self._width_of(feature.modality)
                    self._forms[name] = PartForm((width,), self._dtype, rows)
                    self._keys[name] = self._prefix(feature.modality) + name
                    self._features[name] = feature
                if name not in self._local or self._is_encode_only:
                    wanted[name] = index
        return wanted

    def _look_up(self, keys: dict[str, str]) -> None:
        """Take leases on the records (keys by name) that exist and fit the model, except those that this engine
        recomputes: its worker compares them when it saves the output.
        """
        started = time.perf_counter_ns()
        hits = {
            name: hit
            for name, hit in zip(keys, self._contact.look_up([*keys.values()]), strict=True)
            if hit is not None
        }
        sampled = self._contact.sampled([keys[name] for name in hits]) if self._can_save else frozenset()
        for name, hit in hits.items():
            if keys[name] in sampled and self._can_be_encoded(self._features[name]):
                self._recomputed.add(name)
            elif name not in self._recomputed:
                self._add(name, hit)
        self.counts["lookup_us"] += (time.perf_counter_ns() - started) // 1000

    def _add(self, name: str, hit: Hit) -> None:
        form = self._forms.get(name)
        # A hit without a token is a copy, made because too many leases are out. Workers cannot open it.
        if form is None or hit.token is None:
            return
        judged = (hit.token, form)
        if judged not in self._judged:
            if len(self._judged) >= MAX_JUDGED:
                del self._judged[next(iter(self._judged))]
            self._judged[judged] = reason = mismatch(hit.record, form)
            if reason is not None:
                self._refuse(name, reason)
        if self._judged[judged] is None:
            self._leases.add(name, hit)

    def _refuse(self, name: str, reason: str) -> None:
        self.counts["unusable"] += 1
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("mmcached: the record of %s does not fit the model, and is not loaded: %s", name, reason)

    def _can_do_without(self, request: Any, wanted: dict[str, int], shared: dict[str, str]) -> bool:
        """Claim the missing items; return False if the request must not be scheduled in this step."""
        if self.is_sharing:
            lost = [name for name in shared if name in self._local and name not in self._leases]
            self._plan.saves.update((name, shared[name]) for name in lost)
        missing = [name for name in wanted if name not in self._leases and name not in self._local]
        for name in missing:
            if not self._can_be_encoded(request.mm_features[wanted[name]]):
                # Its embedding was to come from the store. Scheduled without it, the request would end the engine.
                if not (name in shared and self._contact.is_starting and self._clock() < self._give_up_at):
                    self._unavailable.add(request.request_id)
                return False
        unknown = [name for name in missing if name in shared and name not in self._recomputed]
        is_waiting = self._must_wait({shared[name]: name for name in unknown})
        self.counts["waits"] += is_waiting
        return not is_waiting

    def _must_wait(self, names: dict[str, str]) -> bool:
        """Claim the keys of `names`; return whether the request must wait."""
        if self._claims is None or not names or not self.is_sharing:
            return False
        is_waiting, hits = self._claims.must_wait(list(names))
        for key, hit in hits.items():
            self._add(names[key], hit)
        return is_waiting
