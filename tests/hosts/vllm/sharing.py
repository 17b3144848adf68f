"""Joins two vLLM servers by one store, and asks them: what the one has encoded, the other shall not encode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mmcached.wire.config import ServiceConfig
from tests.hosts.prompts import Content
from tests.hosts.vllm.servers import Answer, Refused, VllmServer, mmcached
from tests.house.leaks import outliving_the_test
from tests.integration.processes import eventually, small_config, stats_of

SMALL_STEPS = {"max-num-batched-tokens": 128}
"""Two of the largest images fill a step, and the engine's own encoder cache: prompts are computed in chunks, and what
the cache has forgotten comes from the store."""
NUM_ASKING = 8

Outcome = Answer | OSError | Refused


def store_config(**changes: object) -> ServiceConfig:
    """A store of 256 MiB, whose frontend comes back at once when it dies."""
    return small_config(**({"world_size": 0, "store_gb": 0.25, "restart_backoff_s": 0.05} | changes))


class Pair:
    """Two servers with the same command line; each starts when it is first asked for, and again after its death.

    Args:
        run_dir: of the service, which need not run.
        options: of both servers' command lines.
    """

    def __init__(self, model: Path, run_dir: Path, logs: Path, options: Mapping[str, Any]) -> None:
        self._model = model
        self._run_dir = run_dir
        self._logs = logs
        self._options = {**options, **mmcached(run_dir)}
        self._servers: dict[str, VllmServer] = {}
        self._records_before = 0

    @property
    def first(self) -> VllmServer:
        return self._server("first")

    @property
    def second(self) -> VllmServer:
        return self._server("second")

    def wait_until_saved(self) -> None:
        """Return when the store has all that the first server has encoded; it has asked all that is in the store."""
        wanted = self._records_before + len(set(self.first.items_encoded()))
        eventually(lambda: stats_of(self._run_dir).store.ring.chunks, lambda now: now >= wanted, f"{wanted} records")

    def _server(self, name: str) -> VllmServer:
        server = self._servers.get(name)
        if server is None or server.process.poll() is not None:
            with outliving_the_test():
                server = VllmServer(self._model, self._logs / f"{name}.log", self._options)
                self._servers[name] = server
                server.wait_until_ready()
            self._records_before = stats_of(self._run_dir).store.ring.chunks
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.stop()


def ask_all(server: VllmServer, messages: Iterable[Content]) -> list[Answer]:
    """Return the answers to all messages, asked by several threads at once."""
    with ThreadPoolExecutor(NUM_ASKING) as threads:
        return list(threads.map(server.ask, messages))


def ask_through(
    servers: Sequence[VllmServer], messages: Sequence[Content], *, trouble: Callable[[], None], after: int
) -> list[Outcome]:
    """Ask the servers in turns, several messages at once; make trouble when `after` have been answered.

    Returns:
        What came of each message.
    """
    with ThreadPoolExecutor(NUM_ASKING) as threads:
        asked: list[Future[Outcome]] = [
            threads.submit(_outcome, server, message) for server, message in zip(cycle(servers), messages, strict=False)
        ]
        for _ in islice(as_completed(asked), after):
            pass
        trouble()
    return [one.result() for one in asked]


def _outcome(server: VllmServer, message: Content) -> Outcome:
    try:
        return server.ask(message)
    except (OSError, Refused) as error:
        return error
