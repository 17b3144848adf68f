"""The `with` statement for classes with `close`."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closeable:
    __slots__ = ()

    def close(self) -> None:
        """Release all resources; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
