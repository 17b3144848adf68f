"""Start the service from a checkout: `scripts/supervisor.py [OPTIONS]` is `mmcached serve [OPTIONS]`.

It works without an installed mmcached, given its dependencies: it then puts the four source roots on the path.
"""

import importlib.util
import os
import sys
from pathlib import Path

SOURCE_ROOTS = ("frontend", "engine", "worker", "shm")


def add_source_roots() -> None:
    """Make mmcached importable here and, through PYTHONPATH, in the children that the supervisor starts."""
    checkout = Path(__file__).resolve().parent.parent
    roots = [str(checkout / name) for name in SOURCE_ROOTS]
    sys.path[:0] = roots
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, inherited] if inherited else roots)


if __name__ == "__main__":
    if importlib.util.find_spec("mmcached") is None:
        add_source_roots()

    from mmcached.cli import main

    sys.argv[1:1] = ["serve"]
    main()
