"""Shows the progress of long work on a terminal. In a pipe only `announcing` prints: one line.

Both outputs must be a terminal: a program that reads one through a pipe, as `mmcached demo` reads its services', has
its own bar or wants none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mmcached.cli.terminal_text import shown

Tell = Callable[[str], None]
"""Updates the text that describes the current work."""
Working = Callable[[str], AbstractContextManager[Tell]]


@contextmanager
def working(words: str) -> Iterator[Tell]:
    """Show a moving bar on stderr, with the elapsed time, until the end of the work, when it is erased."""
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        with unseen(words) as tell:
            yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Without `rich` markup: the text may have a path with brackets.
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(shown(words), total=None)
        yield lambda words: progress.update(task, description=shown(words))


@contextmanager
def announcing(words: str) -> Iterator[Tell]:
    """Show a bar as `working` on a terminal; otherwise print one line on stderr."""
    if not sys.stderr.isatty():
        announce(words)
    with working(words) as tell:
        yield tell


def announce(words: str) -> None:
    sys.stderr.write(f"mmcached: {shown(words)}\n")
    sys.stderr.flush()


@contextmanager
def unseen(words: str) -> Iterator[Tell]:
    """Show nothing."""
    yield lambda words: None
