"""Reports to the service manager that started this process, by systemd's `Type=notify` protocol (sd_notify).

    READY=1      a real request has succeeded
    STATUS=…     readiness as text, when it changes
    STOPPING=1   it drains
    WATCHDOG=1   it works: often enough for WATCHDOG_USEC, and not while requests fail

NOTIFY_SOCKET is the datagram socket to write to; without it nothing is sent. A manager that does not read costs at most
SEND_TIMEOUT_S each time, and misses the message.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Self

import structlog

log = structlog.get_logger("mmcached.supervisor")

SEND_TIMEOUT_S = 1.0
_ADDRESS = "NOTIFY_SOCKET"
_WATCHDOG = ("WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """The connection to one service manager.

    Args:
        address: Its socket: a path, or an abstract name that begins with @; "" without a manager.
        watchdog_s: The silence after which it ends this process; 0.0 without a watchdog.
    """

    def __init__(self, address: str = "", *, watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._interval_s = watchdog_s / 3
        self._next_ping = 0.0
        self._status = ""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Return the manager in the environment, and remove its variables: children must not report in our name."""
        address = environment.pop(_ADDRESS, "")
        microseconds, pid = (environment.pop(name, "") for name in _WATCHDOG)
        is_ours = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, watchdog_s=int(microseconds) / 1e6 if is_ours else 0.0)

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=draining")

    def status(self, words: str) -> None:
        if words != self._status:
            self._status = words
            self._send(f"STATUS={' '.join(words.split())}")

    def works(self, now: float) -> None:
        """Send a watchdog ping, if it is time."""
        if self._interval_s and now >= self._next_ping:
            self._next_ping = now + self._interval_s
            self._send("WATCHDOG=1")

    def _send(self, words: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
                ear.settimeout(SEND_TIMEOUT_S)
                ear.sendto(words.encode(), self._address)
        except OSError as error:
            log.warning("the service manager could not be notified", words=words, reason=str(error))
