"""Both clients behind one blocking face, so that one test asks both for the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mmcached.client import AsyncClient, Client
from mmcached.client.results import Piece


class BlockingAsync:
    """An `AsyncClient` and its event loop; each call runs the loop until it is done."""

    def __init__(self, run_dir: Path, **options: Any) -> None:
        self._client = AsyncClient(run_dir, **options)
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._client, name)
        is_verb = asyncio.iscoroutinefunction(verb)
        return (lambda *values, **named: self._runner.run(verb(*values, **named))) if is_verb else verb

    def generate_stream(self, *values: Any, **named: Any) -> Iterator[Piece]:
        """Iterate over a stream; closing the iterator closes the stream."""
        return self._pieces(self._client.generate_stream(*values, **named))

    def _pieces(self, stream: AsyncGenerator[Piece]) -> Iterator[Piece]:
        try:
            while True:
                yield self._runner.run(anext(stream))
        except StopAsyncIteration:
            return
        finally:
            self._runner.run(stream.aclose())

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._client.__aenter__())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


Make = Callable[..., Any]
"""`(run_dir, **options)`: a client, to be used in `with`."""

CLIENTS: dict[str, Make] = {"Client": Client, "AsyncClient": BlockingAsync}
