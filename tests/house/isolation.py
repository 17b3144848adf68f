"""Gives a process, and its children, a /dev/shm that nobody else sees.

`make test` runs three test processes side by side where the kernel allows this, else one: while one waits for a service
to start, two others work. Tests that list, sweep or measure /dev/shm must not meet each other's segments. As a program,
it prints the options for pytest.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_RDONLY = 1
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_SIZE = b"size=50%"


def private_shm(*, is_read_only: bool = False) -> None:
    """Move the calling thread, and what it starts from now on, to a mount namespace with an empty /dev/shm.

    Args:
        is_read_only: nothing can be made in it.
    Raises:
        OSError: the kernel does not allow it; nothing of use has changed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount /")
    _check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_RDONLY if is_read_only else 0, _SIZE), "mount /dev/shm")


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def main() -> int:
    """Print the options for pytest: three processes if each can have its own /dev/shm, else none."""
    try:
        private_shm()
    except OSError:
        return 0
    # A process that dies ends the run: its successor would run the same test again, or get none and wait for ever.
    sys.stdout.write("--numprocesses=3 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
