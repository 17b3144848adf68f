"""Loads and saves encoder outputs in one rank's worker.

    before the encoder runs    load      what the plan names, into the runner's cache; what cannot be had is encoded
    an item was encoded        save      begins a copy, and leaves the rest to the saver's thread
    at the end of the step     report    loads that have ended, saves that have, figures

Ranks encode together, so they agree on what is loaded: an item that one of them cannot have is encoded by all. The
scheduler's lease makes a load certain for all that see the store's memory.

Knows nothing of vLLM but what its encoder cache is: a dict of tensors by name.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch

from mmcached.client import Client, Hit
from mmcached.client.device.devices import Device
from mmcached.client.saver import Saver
from mmcached.integrations.record_form import PartForm
from mmcached.integrations.vllm.messages import Load, StepPlan, StepReport
from mmcached.integrations.vllm.records import EMBEDS, mismatch, record_of

_LOG = logging.getLogger("vllm.mmcached")
LAST_CALL_S = 5.0
"""How long a rank tries to get a record that nothing could replace."""
PUBLISH_S = 5.0
"""How long an engine that encodes for others waits at the end of a step until they can find what it has encoded."""
PAUSE_S = 30.0
"""How long it does not wait after it has waited in vain."""
LAST_SAVES_S = 1.0
"""How long the end of an engine waits for saves."""

Agree = Callable[[list[bool]], list[bool]]
"""Returns, for each load, whether any rank has failed; all ranks call it with lists of one length."""


class WorkerSide:
    """The half of one rank.

    Args:
        client: fails open.
        dtype: that the model computes in.
        max_waiting_bytes: of saves; 0 for a rank that saves nothing, because others have the same.
        agree: see `Agree`.
        is_encode_only: whether the engine encodes for others alone.
        call_timeout_s: of a load, when the service must be asked.
    """

    def __init__(
        self,
        client: Client,
        device: Device,
        dtype: torch.dtype,
        *,
        max_waiting_bytes: int,
        agree: Agree,
        is_encode_only: bool,
        call_timeout_s: float,
    ) -> None:
        self._client = client
        self._device = device
        self._dtype = dtype
        self._agree = agree
        self._is_encode_only = is_encode_only
        self._call_timeout_s = call_timeout_s
        self._ended: deque[tuple[str, str]] = deque()
        self._saver = Saver(client, max_bytes=max_waiting_bytes, on_end=self._note_end) if max_waiting_bytes else None
        self._counts: Counter[str] = Counter()
        self._lost: list[str] = []
        self._report_step: int | None = None
        self._has_warned = False
        self._drain_from = time.monotonic()

    def load(self, plan: StepPlan, cache: dict[str, Any]) -> None:
        """Put what the plan names into the runner's cache, or into the list of what it will encode."""
        if not plan.loads:
            return
        self._report_step = plan.step
        loads = [load for load in plan.loads if load.name not in cache]
        if not loads:
            return
        started = time.perf_counter()
        outputs = [self._output(load) for load in loads]
        failures = self._agree([output is None for output in outputs])
        for load, output, has_failed in zip(loads, outputs, failures, strict=True):
            if has_failed or output is None:
                self._replace(load, plan, cache)
            else:
                cache[load.name] = output
        if self._saver is not None:  # one rank's figures are the engine's
            self._counts.update(loads=len(loads), load_failures=sum(failures))
            self._counts["load_us"] += round((time.perf_counter() - started) * 1e6)

    def publish(self, plan: StepPlan, cache: dict[str, Any]) -> None:
        """Save what the engine has had before and the store has lost."""
        for name in [name for name in plan.saves if name in cache]:
            self.save(plan, cache, name)

    def save(self, plan: StepPlan, cache: dict[str, Any], name: str) -> None:
        """Have an output saved, if the plan says so."""
        key = plan.saves.get(name)
        if key is None or self._saver is None:
            return
        started = time.perf_counter()
        output = cache[name]
        if not isinstance(output, torch.Tensor):
            self._ended.append((key, "failed"))
            return
        wait = self._device.begin_copy([output])
        self._saver.save(key, output.nbytes, lambda: record_of(*wait()))
        self._counts["save_us"] += round((time.perf_counter() - started) * 1e6)

    def end_step(self, plan: StepPlan) -> StepReport | None:
        """Return what there is to report of a step; of an engine that encodes for others, after its saves."""
        is_awaited = self._is_encode_only and bool(plan.saves) and time.monotonic() >= self._drain_from
        if is_awaited and self._saver is not None and not self._saver.drain(PUBLISH_S):
            self._drain_from = time.monotonic() + PAUSE_S
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        for _, outcome in ended:
            self._counts[outcome] += 1
        if self._report_step is None and not ended and not self._counts:
            return None
        report = StepReport(plan.step, 1, ended, self._lost, dict(self._counts))
        self._report_step, self._lost = None, []
        self._counts.clear()
        return report

    def close(self) -> None:
        """Save what waits, as far as that is quickly done, and let go of the service."""
        if self._saver is not None:
            self._saver.drain(LAST_SAVES_S)
            self._saver.close()
        self._device.close()
        self._client.close()

    # ---- how

    def _note_end(self, key: str, outcome: str) -> None:
        self._ended.append((key, outcome))

    def _output(self, load: Load) -> torch.Tensor | None:
        """Return the output of an item on the device; None if it cannot be had here."""
        view, timeout_s = self._device.reads_in_place, self._call_timeout_s
        try:
            hit = self._client.open(load.token, view=view, timeout_s=timeout_s)
            is_judged = hit is not None  # by the scheduler: it is still the record that the scheduler has seen
            if hit is None:  # not under that lease any more, or not in this rank's memory
                is_needed = not load.can_be_encoded  # else the step waits for nobody
                limit_s = LAST_CALL_S if is_needed else timeout_s
                hit = self._client.get(load.key, view=view, timeout_s=limit_s, local=not is_needed)
            return None if hit is None else self._own(load, hit, is_judged=is_judged)
        except Exception as error:  # whatever a device raises, other ranks must hear that this one has not got it
            self._warn(f"an encoder output could not be loaded: {type(error).__name__}: {error}")
            return None

    def _own(self, load: Load, hit: Hit, *, is_judged: bool) -> torch.Tensor | None:
        with hit:
            if not is_judged and mismatch(hit.record, PartForm((load.width,), self._dtype, load.num_rows)):
                return None
            (own,) = self._device.load([hit.record[EMBEDS]])
            return own

    def _replace(self, load: Load, plan: StepPlan, cache: dict[str, Any]) -> None:
        """Have an item encoded that cannot be loaded."""
        self._warn("an encoder output went between look-up and load, and is computed")
        if load.can_be_encoded and load.is_scheduled:
            plan.scheduled.setdefault(load.request_id, []).append(load.item)
            plan.saves[load.name] = load.key
        else:  # there must be something, or the engine ends; the request fails, and no other
            (cache[load.name],) = self._device.load([torch.zeros(load.num_rows, load.width, dtype=self._dtype)])
            self._lost.append(load.request_id)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("mmcached: %s (said once)", text)
