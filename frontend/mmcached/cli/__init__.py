"""The `mmcached` command line.

app.py        commands for people                     role.py           one process, as the supervisor starts it
exit_status   exit statuses                           installed         versions and packages
progress      a progress bar for long work            terminal_text     escapes text from outside
serve/        the supervisor and its roles            watch/            status, readiness and metrics, over HTTP
admin/        commands for a running service          doctor/           checks of the host, with fixes
config/       settings from four layers               logs/             the format of all log lines
demo/, bench/, ray/     `mmcached demo`, `mmcached bench` and `mmcached ray`

Only the worker role, the demo and actors on a Ray cluster import torch.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from mmcached.cli.exit_status import INTERRUPTED, USAGE

ROLES = ("frontend", "second-level", "engine", "worker")


def main() -> None:
    """Run a role or the command line; name the missing extra if a package is not installed.

    Ctrl-C ends it with status `INTERRUPTED` and without a traceback. `serve` and the roles install their own handlers.
    """
    end_at_interrupt()
    try:
        if sys.argv[1:] and sys.argv[1] in ROLES:
            from mmcached.cli.role import main as run
        else:
            from mmcached.cli.app import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mmcached"):
            raise
        from mmcached.wire.extras import how_to_install

        sys.stderr.write(f"mmcached: the command needs {error.name}: {how_to_install('store')}\n")
        sys.exit(USAGE)
    try:
        _raise_at_interrupt()
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        end_at_interrupt()  # no clean-up is needed while Python shuts down either


def end_at_interrupt() -> None:
    """End this process at the first Ctrl-C while modules are imported, when no clean-up is needed yet.

    An exception would pass through other packages' imports, some of which hide it. Where Ctrl-C is ignored, as in a
    background job of a shell, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _raise_at_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)


__all__ = ["end_at_interrupt", "main"]
