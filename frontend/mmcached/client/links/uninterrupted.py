"""Runs a function that must not be interrupted in a thread of its own: signal handlers run in the main thread only.

An exception in the middle of making or closing a connection would leave a descriptor or a lock that cannot be closed.
"""

from __future__ import annotations

# Not `threading.Thread`: a thread object whose `start` is interrupted is kept for ever.
import _thread
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def uninterrupted(make: Callable[[], T], timeout_s: float = -1) -> T:
    """Return the result of `make`, or raise its error; `make` goes on if the wait is interrupted or times out.

    Raises:
        TimeoutError: It takes longer than `timeout_s`, if that is not negative.
    """
    made: list[T] = []
    errors: list[BaseException] = []
    is_running = _thread.allocate_lock()
    is_running.acquire()

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:
            errors.append(error)
        finally:
            is_running.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
        return make()
    if not is_running.acquire(timeout=timeout_s):
        raise TimeoutError
    if errors:
        raise errors.pop()
    return made.pop()
