"""Shows a service live on a terminal: `mmcached top`.

A thread looks at the service, which may take seconds when it hangs; this one draws, and hears the keys.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mmcached.cli.watch.overview import Overview
from mmcached.cli.watch.top_frame import Fitted, draw

_KEY_WAIT_S = 0.1
_QUIT = b"qQ\x03\x04"
"""Also ctrl-c and ctrl-d."""


def show(look: Callable[[], Overview | None], interval_s: float, console: Console, nobody: str) -> None:
    """Draw a frame every `interval_s` until the user presses q or ctrl-c.

    Args:
        look: Returns the overview to draw; None if there is no service (any more).
        nobody: Text shown while there is no service.
    """
    with (
        contextlib.suppress(KeyboardInterrupt),
        ThreadPoolExecutor(1, "mmcached-top") as threads,
        _keys() as has_quit,
        Live(Text("looking …"), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        looking: Future[Overview | None] = threads.submit(look)
        next_look, size, is_drawn = time.monotonic() + interval_s, console.size, False
        while not has_quit():
            if is_drawn and time.monotonic() >= next_look:
                looking, next_look, is_drawn = threads.submit(look), time.monotonic() + interval_s, False
            if looking.done() and not is_drawn:
                overview, is_drawn = looking.result(), True
                live.update(Text(nobody) if overview is None else Fitted(draw(overview)), refresh=True)
            elif console.size != size:
                size = console.size
                live.refresh()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    """Read single key presses; yield a function that waits a moment and returns whether the user quits.

    Ctrl-c is read as a key: as a signal it could arrive inside a finalizer, which swallows it.
    """
    if not sys.stdin.isatty():
        yield _wait_a_moment
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def has_quit() -> bool:
        ready, _, _ = select.select([fd], [], [], _KEY_WAIT_S)
        if not ready:
            return False
        typed = os.read(fd, 64)
        return not typed or any(key in _QUIT for key in typed)

    try:
        tty.setcbreak(fd)
        silent = termios.tcgetattr(fd)
        silent[6][termios.VINTR] = b"\0"  # _POSIX_VDISABLE
        termios.tcsetattr(fd, termios.TCSADRAIN, silent)
        yield has_quit
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _wait_a_moment() -> bool:
    time.sleep(_KEY_WAIT_S)
    return False
