"""Finds and calls the encoder actors on a Ray cluster. Ray is imported at the first use.

This process becomes a Ray driver: it needs a raylet on this host, and ends with it.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ServiceUnavailable
from mmcached.worker.encoders.actor_table import Actor, Call, Lost
from mmcached.worker.encoders.pieces import HEAD_BYTES, Bytes1D, cut, join, num_pieces

PREFIX = "encoder-"
"""Prefix of the names of encoder actors."""
_PAUSE_S = 1.0
_REACHED_S = 5.0


class RayCluster(Closeable):
    """Namespace of a Ray cluster; at most one per process, created in the main thread.

    Raises `ServiceUnavailable` if the cluster is not reached within `timeout_s`.
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
                    with suppress(ValueError):  # it has died since it was listed
                        found.append(RayActor(name, ray.get_actor(name)))
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            raise Lost(f"{type(error).__name__}: {str(error)[:200]}") from error
        return found

    def close(self) -> None:
        import ray

        ray.shutdown()


def connect(address: str, namespace: str, *, timeout_s: float = 0.0) -> None:
    """Make this process a Ray driver, retrying until `timeout_s`; the SIGTERM handler is preserved.

    Raises `ServiceUnavailable` if no cluster is reached that is compatible with this version of Ray.
    """
    import ray

    deadline = time.monotonic() + timeout_s
    on_sigterm = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            _check_reached(address)
            ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                configure_logging=False,
                logging_level="error",
            )
            return
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            if time.monotonic() > deadline:
                reason = f"{type(error).__name__}: {str(error)[:200]}"
                raise ServiceUnavailable(f"no Ray cluster can be reached at {address}: {reason}") from error
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)
        time.sleep(_PAUSE_S)


def _check_reached(address: str) -> None:
    """Raise `OSError` unless a process listens at an address: Ray itself would block for minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_S).close()


class RayActor:
    def __init__(self, name: str, handle: Any) -> None:
        self._name = name
        self._handle = handle

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> Call:
        return self._call("describe")

    def encode(self, record: Bytes1D, num_embeds: int, output_bytes: int) -> Call:
        number = num_pieces(output_bytes + HEAD_BYTES)
        sent = cut(record, num_pieces(record.nbytes))
        return self._call("encode", num_embeds, number, *sent, num_returns=1 + number)

    def _call(self, method: str, *arguments: object, num_returns: int = 1) -> Call:
        import ray

        try:
            made = getattr(self._handle, method).options(num_returns=num_returns).remote(*arguments)
            return RayCall(self._name, made)
        except (ray.exceptions.RayError, ValueError, RuntimeError, OSError) as error:
            raise Lost(f"{self._name}: {type(error).__name__}") from error


class RayCall:
    """Pending call; `made` is the reference to its result, a list of references for `encode`."""

    def __init__(self, name: str, made: Any) -> None:
        self._name = name
        self._made = made
        self._first = made[0] if isinstance(made, list) else made

    def is_over(self) -> bool:
        import ray

        over, _ = ray.wait([self._first], timeout=0, fetch_local=False)
        return bool(over)

    def result(self, timeout_s: float) -> Any:
        import ray

        try:
            found = ray.get(self._made, timeout=timeout_s)
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            # First line only: the rest is a report for the actor's operator.
            raise Lost(f"{self._name}: {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}") from error
        return (*found[0], join(found[1:])) if isinstance(found, list) else found
