"""Finds leases whose descriptors were lost on the way to a living engine, and takes them back.

    granting ──ask──> barred ──the answer to the last question──> granting         barred: items travel inline

An engine is asked when it reports a gap, when it has connected anew, and whenever its row has leases out although
nothing was granted for a while: the last descriptor before a silence leaves no gap. The question goes down the queue of
the descriptors, so its answer knows of all of them. One that is not answered is asked again, ever less often: the
engine may be stopped, and only its death (see `engine_gate`) takes anything from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from mmcached.frontend.engines.engine_links import EngineLink
from mmcached.shm import RingWriter
from mmcached.shm.crash_points import crash_point
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages.parts import Barrier

log = structlog.get_logger("mmcached.frontend")

IDLE_S = 1.0
"""So long after its last lease, or question, a row with leases out is asked."""
MAX_WAIT_S = 30.0


class Barriers:
    """The questions to all engines of one frontend.

    Args:
        tell: queues a message for an engine, or logs that it cannot.
    """

    def __init__(self, ring: RingWriter, tell: Callable[[EngineLink, Barrier], None]) -> None:
        self._ring = ring
        self._tell = tell

    def ask(self, link: EngineLink, now: float) -> None:
        """Ask an engine which leases have arrived, if there is anything to ask."""
        if link.row is None:
            return
        barrier = self._ring.open_barrier(link.row)
        link.next_barrier = now + link.barrier_wait_s
        if barrier is None:
            return
        link.barrier_wait_s = min(2 * link.barrier_wait_s, MAX_WAIT_S)
        self._tell(link, barrier)
        crash_point("barrier.after_send")

    def granted(self, link: EngineLink, now: float) -> None:
        """A lease was sent: the queue is not idle."""
        link.next_barrier = now + IDLE_S

    def check(self, links: Iterable[EngineLink], now: float) -> None:
        """Ask every engine whose queue has been idle for long enough."""
        for link in links:
            if link.row is not None and now >= link.next_barrier:
                self.ask(link, now)

    def answered(self, link: EngineLink, message: received.Reconcile) -> None:
        """Take an engine's answer.

        Raises:
            RemoteProtocolError: the counts cannot be; nothing is granted until a better answer comes.
        """
        if link.row is None or link.nonce != message.nonce:
            raise RemoteProtocolError("this engine has no row of that incarnation", "nonce")
        num_lost = self._ring.reconcile(link.row, message.nonce, message.barrier_id, message.received)
        if num_lost is None:
            return
        link.barrier_wait_s = IDLE_S
        if num_lost:
            log.warning("leases taken back: their descriptors were lost", engine=link.index, leases=num_lost)
