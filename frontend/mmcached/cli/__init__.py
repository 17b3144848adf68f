"""The `mmcached` command line.

    app.py     parses what people type, then hands over
    role.py    one process of a service, as the supervisor starts it
    installed.py   its version
    progress.py    a bar on a terminal while something takes long
    serve/     the supervisor and the roles that it starts
    watch/     status, readiness, metrics, and the pages that show them over HTTP
    admin/     verbs that look at a running service and end it
    doctor/    what a host gives, and how to mend what is missing
    config/    settings from flags, environment, file and defaults
    logs/      one form for every log line
    demo/      `mmcached demo`
    bench/     `mmcached bench`
    ray/       `mmcached ray`: services and encoders on a Ray cluster

Only the worker role, the demo's proof and what is placed on a Ray cluster import torch.
"""

import sys

ROLES = ("frontend", "second-level", "engine", "worker")


def main() -> None:
    """Run a role or the command line; say what to install where the extra `service` is missing."""
    try:
        if sys.argv[1:] and sys.argv[1] in ROLES:
            from mmcached.cli.role import main as run
        else:
            from mmcached.cli.app import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mmcached"):
            raise
        raise SystemExit(f"mmcached: the command needs {error.name}: pip install 'mmcached[service]'") from None
    run()


__all__ = ["main"]
