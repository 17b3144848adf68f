"""Finds the encoder actors on a Ray cluster, and calls them. Ray is imported when it is first used.

A driver of Ray in this process: it needs a raylet on this host, and ends with it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ServiceUnavailable
from mmcached.worker.encoders.actor_table import Actor, Bytes1D, Call, Lost

PREFIX = "encoder-"
"""What the names of encoder actors begin with."""
_PAUSE_S = 1.0


class RayCluster(Closeable):
    """A namespace of a cluster. One of them in a process, made in its main thread.

    Args:
        timeout_s: for the cluster to be reached.
    Raises:
        ServiceUnavailable: it was not.
    """

    def __init__(self, address: str, namespace: str, *, timeout_s: float) -> None:
        connect(address, namespace, timeout_s=timeout_s)

    def actors(self) -> Sequence[Actor]:
        import ray
        from ray.util import list_named_actors

        found = []
        try:
            for name in sorted(list_named_actors()):
                if name.startswith(PREFIX):
                    with suppress(ValueError):  # it is dead since
                        found.append(RayActor(name, ray.get_actor(name)))
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            raise Lost(f"{type(error).__name__}: {str(error)[:200]}") from error
        return found

    def close(self) -> None:
        import ray

        ray.shutdown()


def connect(address: str, namespace: str, *, timeout_s: float = 0.0) -> None:
    """Make this process a driver; SIGTERM stays whose it was. Tried again until the time is over.

    Raises:
        ServiceUnavailable: no cluster that speaks as this version of Ray does.
    """
    import ray

    deadline = time.monotonic() + timeout_s
    on_sigterm = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                configure_logging=False,
                logging_level="error",
            )
            return
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
            ray.shutdown()
            if time.monotonic() > deadline:
                reason = f"{type(error).__name__}: {str(error)[:200]}"
                raise ServiceUnavailable(f"no Ray cluster can be reached at {address}: {reason}") from error
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)
        time.sleep(_PAUSE_S)


class RayActor:
    """A named actor."""

    def __init__(self, name: str, handle: Any) -> None:
        self._name = name
        self._handle = handle

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> Call:
        return self._call("describe")

    def encode(self, record: Bytes1D, num_embeds: int) -> Call:
        return self._call("encode", record, num_embeds)

    def _call(self, method: str, *arguments: object) -> Call:
        import ray

        try:
            return RayCall(self._name, getattr(self._handle, method).remote(*arguments))
        except (ray.exceptions.RayError, ValueError, RuntimeError, OSError) as error:
            raise Lost(f"{self._name}: {type(error).__name__}") from error


class RayCall:
    """One call."""

    def __init__(self, name: str, reference: Any) -> None:
        self._name = name
        self._reference = reference

    def is_over(self) -> bool:
        import ray

        over, _ = ray.wait([self._reference], timeout=0, fetch_local=False)
        return bool(over)

    def result(self, timeout_s: float) -> Any:
        import ray

        try:
            return ray.get(self._reference, timeout=timeout_s)
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            # With its first line only: the rest is a report for whoever has started the actor.
            raise Lost(f"{self._name}: {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}") from error
