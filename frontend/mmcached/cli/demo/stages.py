"""Shows the demo's stages: a bar on a terminal while a stage runs, one line with its time at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Stages:
    """Runs stages on a console; see `shown_stages`."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Run one stage; yields a function to be called after each of its `total` parts."""
        task = self._progress.add_task(title, total=total)
        started = time.monotonic()
        yield lambda: self._progress.advance(task)
        self._progress.remove_task(task)
        self._console.print(f"{title:<64}{time.monotonic() - started:6.1f} s", highlight=False)


@contextmanager
def shown_stages(console: Console) -> Iterator[Stages]:
    """Yield the stages of a demo on a console; without a terminal only the lines are written."""
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Stages(console, progress)
