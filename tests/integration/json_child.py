"""Client processes that say a line of JSON at a time, one by one or as a crowd of which some are killed."""

from __future__ import annotations

import contextlib
import json
import random
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from mmcached.wire.process.death import environment_for_children
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S


class JsonChild:
    """One process of a Python program; its owner kills it at the end."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=REPOSITORY,
            env=environment_for_children(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return what it says next, which is no complaint."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S), "the child says nothing"
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "wrong" not in heard, heard
        return heard

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Crowd:
    """Processes that work until their input ends; always as many, whoever is killed.

    Args:
        start: starts the n-th of them.
    """

    def __init__(self, start: Callable[[int], JsonChild], size: int) -> None:
        self._start = start
        self._rng = random.Random(size)
        self.num_started = 0
        self.children: list[JsonChild] = []
        for _ in range(size):
            self.children.append(self._next())

    def _next(self) -> JsonChild:
        self.num_started += 1
        return self._start(self.num_started)

    def wait_until_ready(self) -> None:
        for child in self.children:
            assert "ready" in child.hear()

    def are_alive(self) -> bool:
        return all(child.process.poll() is None for child in self.children)

    def kill_one(self) -> None:
        """Kill one in the middle of its calls, and let another come."""
        victim = self._rng.randrange(len(self.children))
        status = self.children[victim].process.poll()
        assert status is None, (status, self.children[victim].hear())
        self.children[victim].kill()
        self.children[victim] = self._next()
        assert "ready" in self.children[victim].hear()

    def end(self) -> Counter[str]:
        """Let all end in order; return what they have counted together."""
        counts: Counter[str] = Counter()
        for child in self.children:
            child.close_input()
        for child in self.children:
            counts.update(child.hear())
            assert child.process.wait(DEADLINE_S) == 0
        return counts

    def close(self) -> None:
        for child in self.children:
            child.kill()


@contextlib.contextmanager
def crowd(start: Callable[[int], JsonChild], size: int) -> Iterator[Crowd]:
    """Start a crowd, and yield it when all are ready."""
    made = Crowd(start, size)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.close()
