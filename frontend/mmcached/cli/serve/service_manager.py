"""Tells the service manager that started us what systemd's `Type=notify` wants to hear (sd_notify).

    READY=1      a real request has gone through
    STATUS=…     readiness in words, when they change
    STOPPING=1   it drains
    WATCHDOG=1   it works: often enough for WATCHDOG_USEC, and not while nothing goes through

NOTIFY_SOCKET is the datagram socket to write to. Where it is not set nobody is told anything. A manager that does not
read costs at most SEND_TIMEOUT_S each time, and misses what was said.
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
    """One manager's ear.

    Args:
        address: of its socket: a path, or an abstract name that begins with @; "" if there is no manager.
        watchdog_s: the silence after which it ends us; 0.0 if it does not listen for that.
    """

    def __init__(self, address: str = "", *, watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._interval_s = watchdog_s / 3
        self._next_ping = 0.0
        self._status = ""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Return the manager that the environment names, and take its name away: our children do not speak for us."""
        address = environment.pop(_ADDRESS, "")
        microseconds, pid = (environment.pop(name, "") for name in _WATCHDOG)
        is_ours = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, watchdog_s=int(microseconds) / 1e6 if is_ours else 0.0)

    def ready(self) -> None:
        """Say that the start is over."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Say that the end has begun."""
        self._send("STOPPING=1\nSTATUS=draining")

    def status(self, words: str) -> None:
        """Say how the service is, if that is news."""
        if words != self._status:
            self._status = words
            self._send(f"STATUS={' '.join(words.split())}")

    def works(self, now: float) -> None:
        """Say that the service works, if it is time to.

        Args:
            now: monotonic seconds.
        """
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
            log.warning("the service manager was not told", words=words, reason=str(error))
