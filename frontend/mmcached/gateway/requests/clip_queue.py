"""Decides when clips are opened and decoded: each file by one work at a time, and as much at a time as there is room.

    begin ──> a thread plans it ──> its file is being decoded? behind that one ──> room? in line ──> a thread decodes it
       └── slices that are made again ──^

Two parts of a file that are wanted at a time have slices in common: the second finds those of the first in the store
when its turn comes, and has the rest decoded.

Works by key; the threads, and who waits for a work, are others'. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import NamedTuple

from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pool import Done, IsWanted, Mailbox, NotWantedError, WorkPool
from mmcached.gateway.requests.clip_room import ClipRoom
from mmcached.gateway.requests.clip_work import ClipWork, Cut, Decoded, Job, Planned
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import Modality


class Refused(NamedTuple):
    """Why nothing could be made of a file."""

    data: Frame
    error: Exception


class ClipTask(NamedTuple):
    """What is to be done with a clip: it is cut, or the `wanted` ones of its slices are made again."""

    medium: Medium
    wanted: tuple[int, ...]
    tenant: str
    client: str


class ClipQueue:
    """The clips that are on their way from files to slices.

    Args:
        mailbox: takes what becomes of a clip without a thread, as if one had made it.
    """

    def __init__(self, work: ClipWork, room: ClipRoom[Job], workers: WorkPool, mailbox: Mailbox) -> None:
        self._work = work
        self._room = room
        self._workers = workers
        self._mailbox = mailbox
        self._tasks: dict[str, ClipTask] = {}
        self._busy: dict[str, str] = {}  # file -> the work that decodes it, or is in line to do so
        self._behind: dict[str, dict[str, Planned | None]] = {}  # file -> works that come after that one

    def __contains__(self, key: object) -> bool:
        """Return whether a clip is on its way."""
        return key in self._tasks

    def modality_of(self, key: str) -> Modality:
        return self._tasks[key].medium.modality

    def begin(self, key: str, task: ClipTask) -> None:
        """Have a clip cut, or slices of it made again."""
        self._tasks[key] = task
        if task.wanted:
            self._enter(key, None)
        else:
            self._submit(key, self._work.plan(task.medium))

    def join(self, key: str, client: str) -> None:
        """Let another client wait, too, and lend it a turn."""
        self._room.join(key, client)
        self._workers.join(key, client)

    def take(self, key: str, outcome: object, *, is_wanted: bool) -> object:
        """Take what a thread has come to; return what has become of the clip; None: it goes on.

        Args:
            is_wanted: somebody waits for it, and it was begun after the last flush.
        """
        task = self._tasks[key]
        if is_wanted and isinstance(outcome, Planned):
            self._enter(key, outcome)
            return None
        if is_wanted and isinstance(outcome, Decoded):
            outcome = self._work.finish(key, outcome, task.medium, task.tenant)
        num_bytes = sum(item.encoded.nbytes for item in outcome.items.values()) if isinstance(outcome, Cut) else 0
        self._room.made(key, num_bytes)
        self._end(key)
        return outcome

    def withdraw(self, key: str) -> bool:
        """Take back work that nobody wants any more; return False if its outcome comes all the same."""
        task = self._tasks.get(key)
        if task is None:
            return False
        is_behind = self._behind.get(task.medium.file_key, {}).pop(key, self) is not self
        is_back = is_behind or self._room.withdraw(key) or self._workers.withdraw(key)
        if is_back:
            self._end(key)
        return is_back

    def withdraw_planned(self) -> list[str]:
        """Take back what is planned and not being decoded; return the keys."""
        behind = [key for keys in self._behind.values() for key in keys]
        return [key for key in (*behind, *self._work.planned()) if self.withdraw(key)]

    def let_in(self, in_work: Container[str], urgent: Callable[[], Iterable[str]]) -> None:
        """Begin to decode clips that there is room for; arguments as of `ClipRoom.let_in`."""
        for key, job, client in self._room.let_in(in_work, lambda: map(self._first_of_file, urgent())):
            self._workers.submit(key, job, client)

    def waits_or_counts(self, key: str) -> bool:
        """Return whether work waits for room, or has some."""
        return key in self._room

    def num_waiting_of(self, client: str) -> int:
        """Return how many works of a client no thread knows of yet: they wait for room, or behind another one."""
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
        """Return the work behind which this one waits; or itself."""
        file = self._tasks[key].medium.file_key if key in self._tasks else ""
        return self._busy[file] if key in self._behind.get(file, ()) else key

    def _enter(self, key: str, planned: Planned | None) -> None:
        """Get in line to be decoded, or behind the work that has this one's file."""
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
            self._mailbox.put(Done(key, self._workers.generation, job))
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
    """Return the outcome of a job, or why the file has none. Runs in a thread."""
    try:
        return job(is_wanted)
    except NotWantedError:
        raise
    except Exception as error:
        return Refused(data, error.with_traceback(None))
