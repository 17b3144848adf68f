"""Sets this process's logging up as a role's is, and back again after the test."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from mmcached.cli.logs.lines import set_up_logging
from mmcached.wire.config import ServiceConfig


class Log(io.StringIO):
    """What was logged; perhaps a terminal."""

    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of JSON, all of which name this process."""
        found = [json.loads(line) for line in self.getvalue().splitlines()]
        assert all(record["pid"] == os.getpid() for record in found)
        return found


SetUp = Callable[..., Log]


@pytest.fixture
def set_up() -> Iterator[SetUp]:
    """Return what sets logging up with settings of a service, and returns what is logged then."""
    former, handlers, level = structlog.get_config(), logging.getLogger().handlers[:], logging.getLogger().level
    log = Log()

    def begin(*, is_terminal: bool = False, **settings: Any) -> Log:
        log.is_terminal = is_terminal
        settings = {"log_format": "json", "log_level": "info"} | settings
        set_up_logging("engine 0", ServiceConfig(**settings), stream=log)
        return log

    yield begin
    structlog.configure(**former)
    logging.captureWarnings(False)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
