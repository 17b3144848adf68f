"""Log lines: one form whoever speaks, keys cut, user data withheld. Each case in a process of its own, as a role is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from mmcached.cli.logs.lines import KEY_FIELDS, USER_DATA_FIELDS

KEY = "0123456789abcdef" * 4
SHORT = "0123456789ab"
SET_UP = """
import logging, structlog
made_before = structlog.get_logger()
from mmcached.cli.logs.lines import set_up_logging
from mmcached.wire.config import ServiceConfig
KEY = "0123456789abcdef" * 4
"""


def run(code: str, *, form: str = "json", level: str = "info") -> tuple[int, str]:
    """Return pid and stderr of a process that logs; its stdout must stay empty."""
    chosen = f'ServiceConfig(log_format="{form}", log_level="{level}")'
    program = f"{SET_UP}\nset_up_logging('engine 0', {chosen})\n{textwrap.dedent(code)}"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    assert stdout == ""
    return child.pid, stderr


def records(code: str, **options: Any) -> list[dict[str, Any]]:
    pid, text = run(code, **options)
    found = [json.loads(line) for line in text.splitlines()]
    assert all(record["pid"] == pid for record in found)
    return found


def test_both_loggers_speak_in_one_form() -> None:
    first, second, third = records(
        """
        made_before.warning("went away", peer="x", request_id=7)
        logging.getLogger("mmcached.engine").error("rank %d left", 3, extra={"request_id": 8})
        structlog.get_logger().info("rank %d came", 4)
        """
    )
    assert list(first) == ["ts", "level", "role", "pid", "event", "request_id", "peer"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["ts"])
    assert (first["level"], first["role"], first["event"]) == ("warning", "engine 0", "went away")
    assert list(second)[:6] == ["ts", "level", "role", "pid", "event", "request_id"]
    assert (second["level"], second["event"], second["request_id"]) == ("error", "rank 3 left", 8)
    assert third["event"] == "rank 4 came"


def test_what_is_bound_is_on_every_line() -> None:
    found = records(
        """
        with structlog.contextvars.bound_contextvars(request_id=12):
            made_before.info("one")
            logging.getLogger("x").info("two")
        made_before.info("three")
        """
    )
    assert [record.get("request_id") for record in found] == [12, 12, None]


@pytest.mark.parametrize(("level", "num_shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_holds_for_both(level: str, num_shown: int) -> None:
    code = "for log in (made_before, logging.getLogger('x')):\n"
    code += "".join(f"    log.{each}('said')\n" for each in ("debug", "info", "warning", "error"))
    assert len(records(code, level=level)) == 2 * num_shown


def test_keys_are_cut() -> None:
    found = records(
        """
        made_before.info("missed " + KEY, mm_hash=KEY, client_id=KEY[:32], key=bytes.fromhex(KEY), note=KEY)
        logging.getLogger("x").info("missed %s", [KEY], extra={"mm_hashes": [KEY, KEY], "inside": {"mm_hash": KEY}})
        try:
            raise ValueError(KEY)
        except ValueError:
            made_before.exception("failed")
        """
    )
    assert {found[0][name] for name in ("mm_hash", "client_id", "key")} == {SHORT}
    assert found[0]["event"] == f"missed {SHORT}…"
    assert found[1]["mm_hashes"] == [SHORT, SHORT]
    assert found[1]["inside"] == {"mm_hash": SHORT}
    assert "ValueError: " + SHORT in found[2]["exception"]
    assert KEY not in json.dumps(found)


def test_other_hexadecimal_text_stays() -> None:
    ring = "/mmc.1000." + KEY[:32] + ".ctl"
    (found,) = records(f"made_before.info('removed {ring}', ring={ring!r})")
    assert (found["event"], found["ring"]) == (f"removed {ring}", ring)


def test_user_data_is_withheld() -> None:
    fields = sorted(USER_DATA_FIELDS)
    found = records(
        f"""
        import numpy
        given = dict.fromkeys({fields!r}, "SECRET")
        made_before.info("one", **given)
        logging.getLogger("x").info("two", extra=given)
        made_before.info("three", inside={{"prompt": "SECRET", "size": 3}})
        made_before.info("four", frame=b"SECRET", view=memoryview(b"SECRET"), array=numpy.frombuffer(b"SECRET", "u1"))
        """
    )
    assert found[0]["withheld"] == found[1]["withheld"] == fields
    assert found[2]["inside"] == {"size": 3}
    assert found[2]["withheld"] == ["prompt"]
    assert (found[3]["frame"], found[3]["view"], found[3]["array"]) == ("<6 bytes>", "<6 bytes>", "<ndarray>")
    assert "SECRET" not in json.dumps(found)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_variables(form: str) -> None:
    code = """
    def fail(prompt):
        raise ValueError("broken")
    def call():
        try:
            fail("SEC" + "RET")
        except ValueError:
            made_before.exception("first")
            logging.getLogger("x").exception("second")
    call()
    """
    _, text = run(code, form=form)
    assert text.count("ValueError: broken") == 2
    assert "SECRET" not in text


def test_console_form_is_for_people() -> None:
    pid, text = run("made_before.warning('went away', mm_hash=KEY)", form="console")
    assert "went away" in text
    assert f"mm_hash={SHORT}" in text
    assert str(pid) in text
    assert "\x1b[" not in text, "no colours off a terminal"


def test_what_a_peer_has_named_is_no_command_to_a_terminal() -> None:
    _, text = run("made_before.warning('met\\x9b', client='a\\x1b[2J', reason='b c\\u202e')", form="console")
    assert text.removesuffix("\n").isprintable()
    assert "a\\x1b[2J" in text


def test_auto_off_a_terminal_is_json() -> None:
    (found,) = records("made_before.warning('x')", form="auto")
    assert found["event"] == "x"


def test_auto_on_a_terminal_is_console() -> None:
    code = """
    import io
    class Terminal(io.StringIO):
        def isatty(self): return True
    stream = Terminal()
    set_up_logging("engine 0", ServiceConfig(), stream=stream)
    made_before.warning("went away")
    assert "went away" in stream.getvalue() and not stream.getvalue().startswith("{")
    """
    assert run(code)[1] == ""


def test_a_second_set_up_replaces_the_first() -> None:
    (found,) = records("set_up_logging('worker 1', ServiceConfig(log_format='json')); made_before.warning('once')")
    assert found["role"] == "worker 1"


def test_warnings_are_log_lines() -> None:
    (found,) = records("import warnings; warnings.warn('old', UserWarning)")
    assert (found["level"], "old" in found["event"]) == ("warning", True)


def test_what_json_cannot_say_does_not_end_the_program() -> None:
    (found,) = records("made_before.info('odd', value=object, error=ValueError('x'), numbers={1, 2})")
    assert found["numbers"] == [1, 2]


def test_no_field_is_both_a_key_and_user_data() -> None:
    assert not KEY_FIELDS & USER_DATA_FIELDS
