"""The readers of a ring as its writer knows them: attaches them, and sees their leases, hits and deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.reader_watch import ReaderStopped, ReaderVoided, ReaderWatch
from mmcached.shm.ring.touch_logs import TouchLogs
from mmcached.shm.segment.board import NO_LIMIT, Board
from mmcached.shm.segment.layout import PID_WORD
from mmcached.shm.segment.mapped import Control


class RingReaders:
    """All readers of one ring.

    Args:
        touch: Called with the slot, and the lower bits of the generation, of each hit of a reader.
        quota_bytes, shared_quota_bytes: Limits as of `RingWriter`.

    Attributes:
        leases: The leases of all readers.
        touch_logs: The readers' numbers of hits and misses, up to the last `poll_hits`.
    """

    def __init__(
        self,
        control: Control,
        board: Board,
        touch: Callable[[int, int], None],
        *,
        quota_bytes: int | None,
        shared_quota_bytes: int | None,
    ) -> None:
        self._control = control
        self._board = board
        self._quota_bytes = NO_LIMIT if quota_bytes is None else quota_bytes
        self._shared_quota_bytes = NO_LIMIT if shared_quota_bytes is None else shared_quota_bytes
        self.touch_logs = TouchLogs(control, touch)
        self.leases = LeaseTable(control.counts(), is_idle=self.touch_logs.holds_nothing)
        self._watch = ReaderWatch(control, self.leases, board)
        board.set_limits(self._quota_bytes, self._shared_quota_bytes)

    def attach(self, reader_id: int, incarnation: int) -> bool:
        """Attach the reader that announces that it has taken entry `reader_id`; see `ReaderWatch.attach`."""
        is_attached = self._watch.attach(reader_id, incarnation)
        if is_attached:
            self.touch_logs.begin(reader_id, incarnation)
        return is_attached

    def adopt(self, may_hold: Callable[[], Iterable[int]]) -> None:
        """Take over the living readers of a former writer.

        Args:
            may_hold: Returns the slots that can be leased; see `LeaseTable.adopt`.
        """
        for reader_id in self._watch.adopt(may_hold):
            self.touch_logs.begin(reader_id, self.leases.incarnations()[reader_id])

    def fenced_pids(self) -> list[int]:
        """Return the processes of the readers that may take no more leases because their counts were impossible."""
        words, layout = self._control.words, self._control.layout
        return [words[layout.incarnation_word(reader_id) + PID_WORD] for reader_id in self.leases.fenced_readers()]

    def poll_deaths(self) -> list[ReaderStopped | ReaderVoided]:
        """Detect readers that have died or must stop; for their leases see the two events."""
        events = self._watch.poll_deaths()
        for event in events:
            if isinstance(event, ReaderVoided):
                self.touch_logs.end(event.reader_id, event.incarnation)
        return events

    def poll_hits(self) -> None:
        """Take in the readers' own hits, and publish how many bytes they may still hold."""
        held_bytes = self.touch_logs.take_in(self.leases.incarnations(), self._quota_bytes)
        self._board.set_limits(self._quota_bytes, max(0, self._shared_quota_bytes - held_bytes))
