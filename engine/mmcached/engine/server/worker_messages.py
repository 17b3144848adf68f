"""Handles messages of the workers: hellos, attachments, step outputs, checksums of probes.

If a rank's process was replaced, its caches are lost, so all caches are cleared.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.probes import EngineProbes
from mmcached.engine.server.step_ends import StepEnds
from mmcached.engine.server.step_runner import StepRunner
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend_from_engines as to_frontend
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.process.turns import Guard, TurnShare
from mmcached.wire.sockets.listener import Listener

log = structlog.get_logger("mmcached.engine")


class WorkerMessages:
    """Handler of the workers' messages; `num_deaths_in_steps` counts deaths of workers that were computing."""

    def __init__(
        self,
        channel: Listener[received.FromWorker],
        group: WorkerGroup,
        frontend: FrontendConnection,
        scheduler: Scheduler,
        *,
        incarnation: int,
        steps: StepRunner,
        ends: StepEnds,
        probes: EngineProbes,
        guard: Guard,
        publish: Callable[[], object],
    ) -> None:
        self.num_deaths_in_steps = 0
        self._channel = channel
        self._group = group
        self._frontend = frontend
        self._scheduler = scheduler
        self._incarnation = incarnation
        self._steps = steps
        self._ends = ends
        self._probes = probes
        self._guard = guard
        self._publish = publish

    def serve(self, share: TurnShare) -> None:
        for peer, message, payload in self._channel.serve(share):
            match message:
                case RemoteProtocolError():
                    log.warning("bad message from a worker", peer=peer.hex(), reason=str(message))
                case received.WorkerHello():
                    self._guard.call("hello of a worker", self._on_hello, peer, message)
                case received.WorkerAttached():
                    self._guard.call("attachment of a worker", self._on_attached, message)
                case received.StepOutput() | received.StepFailed():
                    # Not guarded: a partly committed step would contradict the tables.
                    finished = self._steps.add_result(message, payload)
                    if finished is not None:
                        self._ends.end_step(finished)
                case received.WorkerProbed():
                    self._guard.call("probe answer of a worker", self._on_probed, message)

    def start_over(self) -> None:
        """Clear all caches, since a rank has lost its own; requests start over at token 0."""
        self._scheduler.reset()
        self._steps.void()
        for token in self._probes.take_all():
            self._frontend.send(to_frontend.EngineProbed(token, []))
        self._group.send_all(to_worker.ClearCaches(self._incarnation))

    def _on_hello(self, peer: bytes, message: received.WorkerHello) -> None:
        accepted = self._group.hello(peer, message)
        if accepted is None:
            return
        link, has_replaced = accepted
        if not link.is_attached:
            self._group.attach(link)
        if has_replaced:
            fatal = self._steps.computed_by(link.rank)
            requests = [] if fatal is None else fatal.request_ids()
            log.warning("rank replaced: all caches start over", rank=link.rank, was_computing=requests)
            self.start_over()
            if fatal is not None:
                self.num_deaths_in_steps += 1
                self._scheduler.blame_death(fatal)

    def _on_attached(self, message: received.WorkerAttached) -> None:
        link = self._group.attached(message)
        if link is None:
            return
        log.info("worker attached", rank=link.rank, device=link.device)

    def _on_probed(self, message: received.WorkerProbed) -> None:
        if message.engine_incarnation != self._incarnation:
            return
        checksums = self._probes.answered(message)
        if checksums is not None:
            self._publish()  # the prober reads the statistics next: they must not be from the middle of its probe
            self._frontend.send(to_frontend.EngineProbed(message.token, checksums))
