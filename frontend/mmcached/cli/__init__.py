"""The `mmcached` command line.

    app.py     parses what people type, then hands over
    role.py    one process of a service, as the supervisor starts it
    exit_status.py   what the command line ends with
    installed.py   its version
    progress.py    a bar on a terminal while something takes long
    terminal_text.py   escapes text from outside that is printed
    serve/     the supervisor and the roles that it starts
    watch/     status, readiness, metrics, and the pages that show them over HTTP
    admin/     verbs that look at a running service and end it
    doctor/    what a host gives, and how to fix what is missing
    config/    settings from flags, environment, file and defaults
    logs/      one form for every log line
    demo/      `mmcached demo`
    bench/     `mmcached bench`
    ray/       `mmcached ray`: services and encoders on a Ray cluster

Only the worker role, the demo's proof and what is placed on a Ray cluster import torch.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from mmcached.cli.exit_status import INTERRUPTED, USAGE

ROLES = ("frontend", "second-level", "engine", "worker")


def main() -> None:
    """Run a role or the command line; say what to install where the extra `store` is missing.

    Ctrl-C ends it with status `INTERRUPTED` and without a traceback. `serve` and the roles install handlers of their
    own.
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
        end_at_interrupt()  # also what Python does at its end has nothing to clean up


def end_at_interrupt() -> None:
    """End this process at the first Ctrl-C while modules are imported: nothing needs to be cleaned up yet.

    An exception instead would pass through other packages' imports, some of which hide it. Where Ctrl-C is ignored, as
    in a background job of a shell, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _raise_at_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)


__all__ = ["end_at_interrupt", "main"]
