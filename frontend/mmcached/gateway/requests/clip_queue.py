"""Orders the work on clips: each file is decoded by one work at a time, and only as many clips at a time as there is
room.

    begin ──> a thread plans it ──> is its file being decoded? wait behind that work ──> room? ──> a thread decodes it
       └── slices that are made again ──^

Two works on one file have slices in common: the second finds those of the first in the store when its turn comes, and
has the rest decoded.

Belongs to the loop's thread. The threads, and the requests that wait for a work, are listed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import NamedTuple

from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pool import IsWanted, Mailbox, NotWantedError, WorkDone, WorkPool
from mmcached.gateway.requests.clip_room import ClipRoom
from mmcached.gateway.requests.clip_work import ClipPlan, ClipWork, Cut, Decoded, Job
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import Modality


class UnusableFile(NamedTuple):
    """An unusable file, with its error."""

    data: Frame
    error: Exception


class ClipTask(NamedTuple):
    """A clip to be cut, or slices to be made again: the indices in `wanted`."""

    medium: Medium
    wanted: tuple[int, ...]
    tenant: str
    client: str


class ClipQueue:
    """The works on clips that are not finished, by key.

    Args:
        mailbox: Takes the result of work that needs no thread, as if a thread had made it.
    """

    def __init__(self, work: ClipWork, room: ClipRoom[Job], workers: WorkPool, mailbox: Mailbox) -> None:
        self._work = work
        self._room = room
        self._workers = workers
        self._mailbox = mailbox
        self._tasks: dict[str, ClipTask] = {}
        self._busy: dict[str, str] = {}  # file -> the work that decodes it, or is in line to do so
        self._behind: dict[str, dict[str, ClipPlan | None]] = {}  # file -> works that come after that one

    def __contains__(self, key: object) -> bool:
        """Return whether a work is not finished."""
        return key in self._tasks

    def modality_of(self, key: str) -> Modality:
        return self._tasks[key].medium.modality

    def begin(self, key: str, task: ClipTask) -> None:
        """Begin to cut a clip, or to make slices of it again."""
        self._tasks[key] = task
        if task.wanted:
            self._enter(key, None)
        else:
            self._submit(key, self._work.plan(task.medium))

    def join(self, key: str, client: str) -> None:
        """Let another client wait too; its turns count for the work."""
        self._room.join(key, client)
        self._workers.join(key, client)

    def take(self, key: str, outcome: object, *, is_wanted: bool) -> object:
        """Take the result of a thread; return the result of the work, or None if it continues.

        Args:
            is_wanted: Whether a request waits for it, and it was begun after the last flush.
        """
        task = self._tasks[key]
        if is_wanted and isinstance(outcome, ClipPlan):
            self._enter(key, outcome)
            return None
        if is_wanted and isinstance(outcome, Decoded):
            outcome = self._work.finish(key, outcome, task.medium, task.tenant)
        num_bytes = sum(item.encoded.nbytes for item in outcome.items.values()) if isinstance(outcome, Cut) else 0
        self._room.made(key, num_bytes)
        self._end(key)
        return outcome

    def withdraw(self, key: str) -> bool:
        """Withdraw work that no request needs; return False if it has begun, so that its result still comes."""
        task = self._tasks.get(key)
        if task is None:
            return False
        is_behind = self._behind.get(task.medium.file_key, {}).pop(key, self) is not self
        is_back = is_behind or self._room.withdraw(key) or self._workers.withdraw(key)
        if is_back:
            self._end(key)
        return is_back

    def withdraw_planned(self) -> list[str]:
        """Withdraw works that are planned and not being decoded; return their keys."""
        behind = [key for keys in self._behind.values() for key in keys]
        return [key for key in (*behind, *self._work.planned()) if self.withdraw(key)]

    def let_in(self, in_work: Container[str], urgent: Callable[[], Iterable[str]]) -> None:
        """Begin to decode clips for which there is room; arguments as for `ClipRoom.let_in`."""
        for key, job, client in self._room.let_in(in_work, lambda: map(self._first_of_file, urgent())):
            self._workers.submit(key, job, client)

    def waits_or_counts(self, key: str) -> bool:
        """Return whether work waits for room, or takes some."""
        return key in self._room

    def num_waiting_of(self, client: str) -> int:
        """Return the number of a client's works that wait for room, or behind another work, and have no thread."""
        behind = (self._tasks[key].client for keys in self._behind.values() for key in keys)
        return self._room.num_waiting_of(client) + sum(each == client for each in behind)

    def close(self) -> None:
        """End all decoders."""
        self._work.close()

    # ---- how

    def _submit(self, key: str, job: Job) -> None:
        task = self._tasks[key]
        self._workers.submit(key, partial(run, task.medium.data, job), task.client)

    def _first_of_file(self, key: str) -> str:
        """Return the work behind which this one waits, or this one."""
        file = self._tasks[key].medium.file_key if key in self._tasks else ""
        return self._busy[file] if key in self._behind.get(file, ()) else key

    def _enter(self, key: str, planned: ClipPlan | None) -> None:
        """Queue a work for decoding, or behind the work on the same file."""
        task = self._tasks[key]
        file = task.medium.file_key
        if file in self._busy:
            self._behind.setdefault(file, {})[key] = planned
            return
        if planned is None:
            job: Job | Cut = self._work.decode(task.medium, task.tenant, task.wanted)
        else:
            job = self._work.go_on(key, planned, task.medium, task.tenant)
        if isinstance(job, Cut):
            self._mailbox.put(WorkDone(key, self._workers.generation, job))
            return
        self._busy[file] = key
        self._room.wait(key, partial(run, task.medium.data, job), task.client)

    def _end(self, key: str) -> None:
        self._work.forget(key)
        file = self._tasks.pop(key).medium.file_key
        if self._busy.get(file) == key:
            del self._busy[file]
        behind = self._behind.get(file, {})
        while behind and file not in self._busy:
            following = next(iter(behind))
            self._enter(following, behind.pop(following))
        if not behind:
            self._behind.pop(file, None)


def run(data: Frame, job: Job, is_wanted: IsWanted) -> object:
    """Return the result of a job, or the file with its error. Runs in a thread."""
    try:
        return job(is_wanted)
    except NotWantedError:
        raise
    except Exception as error:
        return UnusableFile(data, error.with_traceback(None))
