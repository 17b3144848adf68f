"""Shows on a terminal that a long work goes on. In a pipe only `announcing` says something: one line.

Both outputs must be the terminal: who reads one of them through a pipe, as `mmcached demo` reads its services', has a
bar of his own, or wants none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mmcached.cli.terminal_text import shown

Tell = Callable[[str], None]
"""Says in words what is being done now."""
Working = Callable[[str], AbstractContextManager[Tell]]


@contextmanager
def working(words: str) -> Iterator[Tell]:
    """Show a moving bar on stderr, with the time that has passed, until the end of the work; then nothing is left."""
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        with unseen(words) as tell:
            yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Not in `rich`'s markup: the words may have a path with brackets in them.
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(shown(words), total=None)
        yield lambda words: progress.update(task, description=shown(words))


@contextmanager
def announcing(words: str) -> Iterator[Tell]:
    """Do as `working` on a terminal; else say in one line on stderr what begins."""
    if not sys.stderr.isatty():
        announce(words)
    with working(words) as tell:
        yield tell


def announce(words: str) -> None:
    """Say a line on stderr."""
    sys.stderr.write(f"mmcached: {shown(words)}\n")
    sys.stderr.flush()


@contextmanager
def unseen(words: str) -> Iterator[Tell]:
    """Do the same work for nobody who watches."""
    yield lambda words: None
