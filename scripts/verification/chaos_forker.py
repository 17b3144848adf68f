"""The forker of a chaos run: a process that has imported everything and opened nothing, and forks the others.

A fresh interpreter takes a quarter of a second, longer than a reader is meant to live. Forking is harmless here, and
only here: there are no locks, sockets, mappings or threads yet that a child could inherit.

One JSON command per line: `["fork", role, life, seed]` answers the pid; `["reap", pid]` waits for that child and
answers its exit code. At the end of its input it kills and reaps what is left.

    python -m scripts.verification.chaos_forker RUN_DIR CAST
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from scripts.verification.chaos_casts import CASTS, MUTANTS, Cast
from scripts.verification.chaos_roles import Board, Role

_PR_SET_PDEATHSIG = 1


def main(run_dir: Path, cast: Cast) -> None:
    children: set[int] = set()
    for line in sys.stdin:
        match json.loads(line):
            case ["fork", str(name), int(life), int(seed)]:
                pid = os.fork()
                if not pid:
                    _run(name, Role(run_dir, Board(run_dir / "board"), life, seed), cast)
                children.add(pid)
                _answer(pid)
            case ["reap", int(pid)]:
                _answer(_reap(pid))
                children.remove(pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _reap(pid)


def _run(name: str, role: Role, cast: Cast) -> NoReturn:
    """Be a role, in the child."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        with cast.patched():
            play: Callable[[Role], None] = getattr(cast, name)
            play(role)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _answer(value: int) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    name = sys.argv[2]
    main(Path(sys.argv[1]), CASTS[name] if name in CASTS else MUTANTS[name].subject)
