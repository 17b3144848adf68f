"""Loads and saves encoder outputs in one rank's worker.

    before the encoder runs    load      the plan's items into the runner's cache; what cannot be loaded is encoded
    an item was encoded        save      begins a copy
    at the end of the step     report    loads that have ended, saves that have ended, figures

The saver's thread does the rest of a save. It gets the saves at the end of the step, when it is known among how many
rows the encoder's time is divided.

Ranks encode together, so they agree on the loads: an item that one rank cannot load is encoded by all. The scheduler's
lease makes a load certain for all ranks that see the store's memory.

Of vLLM only the encoder cache is used here: a dict of tensors by name.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mmcached.client import Client, Hit
from mmcached.client.device.devices import Device
from mmcached.client.saver import Saver
from mmcached.integrations.encoding_time import EncodingTime
from mmcached.integrations.record_form import PartForm
from mmcached.integrations.vllm.messages import Load, StepOrders, StepReport
from mmcached.integrations.vllm.records import EMBEDS, mismatch, record_of

_LOG = logging.getLogger("vllm.mmcached")
LAST_CALL_S = 5.0
"""How long a rank tries to get a record when the item cannot be encoded instead."""
PUBLISH_S = 5.0
"""How long an encode-only engine waits at the end of a step until its outputs can be found."""
PAUSE_S = 30.0
"""How long it does not wait after a wait that timed out."""
LAST_SAVES_S = 1.0
"""How long the engine's shutdown waits for saves."""

Agree = Callable[[list[bool]], list[bool]]
"""Returns, for each load, whether any rank has failed; collective: all ranks call it with lists of one length."""


class WorkerSide:
    """The connector's half in one rank.

    Args:
        client: A client that fails open.
        dtype: The dtype that the model computes in.
        max_waiting_bytes: Bytes of waiting saves; 0 for a rank that saves nothing, because another rank has the same.
        agree: See `Agree`.
        is_written: Returns whether the tower was written to in this process since it was last read, so that the keys of
            a plan may be those of other weights. Asked only in steps that load or save.
        is_encode_only: Whether the engine only encodes for others.
        call_timeout_s: Timeout of a load that must ask the service.
    """

    def __init__(
        self,
        client: Client,
        device: Device,
        dtype: torch.dtype,
        *,
        max_waiting_bytes: int,
        agree: Agree,
        is_written: Callable[[], bool],
        is_encode_only: bool,
        call_timeout_s: float,
    ) -> None:
        self._client = client
        self._device = device
        self._dtype = dtype
        self._agree = agree
        self._is_written = is_written
        self._is_encode_only = is_encode_only
        self._call_timeout_s = call_timeout_s
        self._ended: deque[tuple[str, str]] = deque()
        self._saver = Saver(client, max_bytes=max_waiting_bytes, on_end=self._note_end) if max_waiting_bytes else None
        self._encoding: EncodingTime | None = None  # of this step
        self._begun: list[Callable[[], object]] = []  # passes on the saves of this step
        self._counts: Counter[str] = Counter()
        self._lost: list[str] = []
        self._report_step: int | None = None
        self._has_warned = False
        self._drain_from = time.monotonic()

    def load(self, plan: StepOrders, cache: dict[str, Any]) -> None:
        """Load the plan's items into the runner's cache, and add the others to the items that it will encode."""
        if not plan.loads:
            return
        self._report_step = plan.step
        loads = [load for load in plan.loads if load.name not in cache]
        if not loads:
            return
        started = time.perf_counter()
        is_written = self._is_written()
        if is_written:
            self._warn("weights were written in this process: nothing is found or saved until they are read again")
        outputs = [None if is_written else self._output(load) for load in loads]
        failures = self._agree([output is None for output in outputs])
        for load, output, has_failed in zip(loads, outputs, failures, strict=True):
            if has_failed or output is None:
                self._replace(load, plan, cache)
            else:
                cache[load.name] = output
        if self._saver is not None:  # one rank reports for the engine
            self._counts.update(loads=len(loads), load_failures=sum(failures))
            self._counts["load_us"] += round((time.perf_counter() - started) * 1e6)

    def publish(self, plan: StepOrders, cache: dict[str, Any]) -> None:
        """Save items that are in the engine's cache already, and that the store has lost."""
        for name in [name for name in plan.saves if name in cache]:
            self.save(plan, cache, name)

    def begin_encoding(self, plan: StepOrders) -> None:
        """Time the encoder from here on, if the step saves something; called last before the encoder runs."""
        watch = self._device.stopwatch() if plan.saves and self._saver is not None else None
        self._encoding = None if watch is None else EncodingTime(watch)

    def save(self, plan: StepOrders, cache: dict[str, Any], name: str) -> None:
        """Save an output in the background, if the plan says so."""
        if self._saver is None or not plan.saves:
            return
        started = time.perf_counter()
        key, output, cost_s = plan.saves.get(name), cache[name], None
        if self._encoding is not None and isinstance(output, torch.Tensor):
            num_rows = output.shape[:-1].numel()
            self._encoding.add(num_rows)
            cost_s = None if key is None else self._encoding.share(num_rows)
        if key is None:
            return
        if not isinstance(output, torch.Tensor) or self._is_written():
            self._ended.append((key, "failed"))
            return
        wait = self._device.begin_copy([output])
        save = partial(self._saver.save, key, output.nbytes, lambda: record_of(*wait()), cost_s=cost_s)
        self._begun.append(save)
        self._counts["save_us"] += round((time.perf_counter() - started) * 1e6)

    def end_step(self, plan: StepOrders) -> StepReport | None:
        """Return the report of a step, or None if there is nothing to report; an encode-only engine waits for saves."""
        self._pass_on()
        is_awaited = self._is_encode_only and bool(plan.saves) and time.monotonic() >= self._drain_from
        if is_awaited and self._saver is not None and not self._saver.drain(PUBLISH_S):
            self._drain_from = time.monotonic() + PAUSE_S
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        for _, outcome in ended:
            self._counts[outcome] += 1
        is_written = bool(plan.loads or plan.saves) and self._is_written()
        if self._report_step is None and not ended and not self._counts and not is_written:
            return None
        report = StepReport(plan.step, 1, ended, self._lost, dict(self._counts), is_written)
        self._report_step, self._lost = None, []
        self._counts.clear()
        return report

    def close(self) -> None:
        """Wait up to `LAST_SAVES_S` for saves, and close the client."""
        if self._saver is not None:
            self._saver.drain(LAST_SAVES_S)
            self._saver.close()
        self._device.close()
        self._client.close()

    # ---- how

    def _pass_on(self) -> None:
        """Give the saves of the step to the saver's thread, which may ask for their shares of the encoder's time."""
        started = time.perf_counter()
        begun, self._begun, self._encoding = self._begun, [], None
        for save in begun:
            save()
        if begun:
            self._counts["save_us"] += round((time.perf_counter() - started) * 1e6)

    def _note_end(self, key: str, outcome: str) -> None:
        self._ended.append((key, outcome))

    def _output(self, load: Load) -> torch.Tensor | None:
        view, timeout_s = self._device.reads_in_place, self._call_timeout_s
        try:
            hit = self._client.open(load.token, view=view, timeout_s=timeout_s)
            is_judged = hit is not None  # the lease still covers the record that the scheduler has validated
            if hit is None:  # the lease has ended, or this rank does not see the ring's memory
                is_needed = not load.can_be_encoded  # else the step does not wait, and the item is encoded
                limit_s = LAST_CALL_S if is_needed else timeout_s
                hit = self._client.get(load.key, view=view, timeout_s=limit_s, local=not is_needed)
            return None if hit is None else self._own(load, hit, is_judged=is_judged)
        # a device may raise anything, and the other ranks must learn that this one has failed
        except Exception as error:
            self._warn(f"an encoder output could not be loaded: {type(error).__name__}: {error}")
            return None

    def _own(self, load: Load, hit: Hit, *, is_judged: bool) -> torch.Tensor | None:
        with hit:
            if not is_judged and mismatch(hit.record, PartForm((load.width,), self._dtype, load.num_rows)):
                return None
            (own,) = self._device.load([hit.record[EMBEDS]])
            return own

    def _replace(self, load: Load, plan: StepOrders, cache: dict[str, Any]) -> None:
        """Schedule an item to be encoded after a failed load; without data it gets zeros, and its request fails."""
        self._warn("an encoder output was dropped between look-up and load, and is computed")
        if load.can_be_encoded and load.is_scheduled:
            plan.scheduled.setdefault(load.request_id, []).append(load.item)
            plan.saves[load.name] = load.key
        else:  # an item without a tensor would end the engine; only this request fails
            (cache[load.name],) = self._device.load([torch.zeros(load.num_rows, load.width, dtype=self._dtype)])
            self._lost.append(load.request_id)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("mmcached: %s (logged once)", text)
