"""Log lines: one form whoever speaks, keys cut, user data withheld."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import structlog

from mmcached.cli.logs.lines import KEY_FIELDS, USER_DATA_FIELDS
from tests.cli.logs.conftest import SetUp

KEY = "0123456789abcdef" * 4
SHORT = "0123456789ab"
made_before = structlog.get_logger()
other = logging.getLogger("x")


def test_both_loggers_speak_in_one_form(set_up: SetUp) -> None:
    log = set_up()
    made_before.warning("went away", peer="x", request_id=7)
    logging.getLogger("mmcached.engine").error("rank %d left", 3, extra={"request_id": 8})
    structlog.get_logger().info("rank %d came", 4)
    first, second, third = log.records()
    assert list(first) == ["ts", "level", "role", "pid", "event", "request_id", "peer"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["ts"])
    assert (first["level"], first["role"], first["event"]) == ("warning", "engine 0", "went away")
    assert list(second)[:6] == ["ts", "level", "role", "pid", "event", "request_id"]
    assert (second["level"], second["event"], second["request_id"]) == ("error", "rank 3 left", 8)
    assert third["event"] == "rank 4 came"


def test_what_is_bound_is_on_every_line(set_up: SetUp) -> None:
    log = set_up()
    with structlog.contextvars.bound_contextvars(request_id=12):
        made_before.info("one")
        other.info("two")
    made_before.info("three")
    assert [record.get("request_id") for record in log.records()] == [12, 12, None]


@pytest.mark.parametrize(("level", "num_shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_holds_for_both(set_up: SetUp, level: str, num_shown: int) -> None:
    log = set_up(log_level=level)
    for logger in (made_before, other):
        for each in ("debug", "info", "warning", "error"):
            getattr(logger, each)("said")
    assert len(log.records()) == 2 * num_shown


def test_keys_are_cut(set_up: SetUp) -> None:
    log = set_up()
    made_before.info("missed " + KEY, mm_hash=KEY, client_id=KEY[:32], key=bytes.fromhex(KEY), note=KEY)
    other.info("missed %s", [KEY], extra={"mm_hashes": [KEY, KEY], "inside": {"mm_hash": KEY}})
    try:
        raise ValueError(KEY)
    except ValueError:
        made_before.exception("failed")
    found = log.records()
    assert {found[0][name] for name in ("mm_hash", "client_id", "key")} == {SHORT}
    assert found[0]["event"] == f"missed {SHORT}…"
    assert found[1]["mm_hashes"] == [SHORT, SHORT]
    assert found[1]["inside"] == {"mm_hash": SHORT}
    assert "ValueError: " + SHORT in found[2]["exception"]
    assert KEY not in json.dumps(found)


def test_other_hexadecimal_text_stays(set_up: SetUp) -> None:
    ring, log = "/mmc.1000." + KEY[:32] + ".ctl", set_up()
    made_before.info(f"removed {ring}", ring=ring)
    (found,) = log.records()
    assert (found["event"], found["ring"]) == (f"removed {ring}", ring)


def test_user_data_is_withheld(set_up: SetUp) -> None:
    fields, log = sorted(USER_DATA_FIELDS), set_up()
    given = dict.fromkeys(fields, "SECRET")
    made_before.info("one", **given)
    other.info("two", extra=given)
    made_before.info("three", inside={"prompt": "SECRET", "size": 3})
    made_before.info("four", frame=b"SECRET", view=memoryview(b"SECRET"), array=np.frombuffer(b"SECRET", "u1"))
    found = log.records()
    assert found[0]["withheld"] == found[1]["withheld"] == fields
    assert found[2]["inside"] == {"size": 3}
    assert found[2]["withheld"] == ["prompt"]
    assert (found[3]["frame"], found[3]["view"], found[3]["array"]) == ("<6 bytes>", "<6 bytes>", "<ndarray>")
    assert "SECRET" not in json.dumps(found)
    assert not KEY_FIELDS & USER_DATA_FIELDS


ROLE = """
import logging, structlog
made_before = structlog.get_logger()
from mmcached.cli.logs.lines import set_up_logging
from mmcached.wire.config import ServiceConfig
def fail(prompt):
    raise ValueError("broken")
def call():
    try:
        fail("SEC" + "RET")
    except ValueError:
        made_before.exception("first")
        logging.getLogger("x").exception("second")
for form in ("json", "console"):
    set_up_logging("engine 0", ServiceConfig(log_format=form))
    call()
"""


def test_a_traceback_shows_no_variables_and_all_goes_to_stderr() -> None:
    """In a process of its own, as a role is: what structlog finds when it is imported decides."""
    done = subprocess.run([sys.executable, "-c", ROLE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert done.stderr.count("ValueError: broken") == 4
    assert "SECRET" not in done.stderr


def test_console_form_is_for_people_and_no_command_to_a_terminal(set_up: SetUp) -> None:
    log = set_up(log_format="console")
    made_before.warning("went away", mm_hash=KEY)
    made_before.warning("met\x9b", client="a\x1b[2J", reason="b c\u202e")
    text = log.getvalue()
    for words in ("went away", f"mm_hash={SHORT}", str(os.getpid()), "a\\x1b[2J"):
        assert words in text
    assert text.replace("\n", "").isprintable(), "no colours off a terminal, and what a peer has named is text"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_auto_is_console_on_a_terminal_alone(set_up: SetUp, is_terminal: bool) -> None:
    log = set_up(log_format="auto", is_terminal=is_terminal)
    made_before.warning("went away")
    assert "went away" in log.getvalue()
    assert log.getvalue().startswith("{") != is_terminal


def test_a_second_set_up_replaces_the_first_and_warnings_are_lines(set_up: SetUp) -> None:
    set_up(log_level="error")
    log = set_up()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    (found,) = log.records()
    assert (found["level"], "old" in found["event"]) == ("warning", True)


def test_what_json_cannot_say_does_not_end_the_program(set_up: SetUp) -> None:
    log = set_up()
    made_before.info("odd", value=object, error=ValueError("x"), numbers={1, 2})
    (found,) = log.records()
    assert found["numbers"] == [1, 2]
