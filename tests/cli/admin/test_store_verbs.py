"""keys and inspect against a frontend of its own process, which is dead in the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from mmcached.cache.name_files import note_name
from mmcached.cache.output_names import ROWS
from mmcached.cache.store_keys import output_key
from mmcached.cli.admin import store_verbs
from mmcached.cli.admin.records import Reader
from mmcached.cli.watch.store_readers import store_readers
from mmcached.client import Client
from mmcached.shm import sweep
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import InvalidRequest
from tests.integration.lone_frontend import LoneFrontend
from tests.present import present
from tests.shm.processes import DEADLINE_S

CONFIG = ServiceConfig(world_size=0, store_gb=4 * MIB / (1 << 30), store_max_clients=4)
RECORD = {"embeds": np.zeros((3, 4), np.float32), "deep": {"stack": [np.arange(5)]}, "note": "x"}


@pytest.fixture(scope="module")
def lone() -> Iterator[LoneFrontend]:
    with (
        tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch,
        LoneFrontend(Path(scratch), CONFIG) as frontend,
    ):
        yield frontend
    sweep()  # when the run directory is gone: a ring of which it has a note is left for the next frontend


def call(lone: LoneFrontend, *arguments: str) -> Result:
    app = typer.Typer()
    store_verbs.register(app)
    return CliRunner().invoke(app, [*arguments, "--run-dir", str(lone.directory.path)])


def found(lone: LoneFrontend, *arguments: str) -> Any:
    return json.loads(call(lone, *arguments, "--json").stdout)


def test_inspect_shows_what_a_name_is_made_of_and_compares_two(lone: LoneFrontend) -> None:
    rows = dict.fromkeys(ROWS) | {"host": "vllm", "libraries": {"torch": "2.13", "cuda": "13.0"}}
    others = rows | {"libraries": {"torch": "2.14", "cuda": "13.0"}}
    one, other = (output_key(note_name(lone.directory.path, each), "1" * 64, "image") for each in (rows, others))
    of_diffusers = f"conditioning/{note_name(lone.directory.path, rows)}/prompt"
    with Client(lone.directory.path) as client:
        assert client.put(one, RECORD)
    shown = call(lone, "inspect", one)
    assert "there" in shown.stdout
    assert re.search(r"host +│ vllm", shown.stdout)
    assert found(lone, "inspect", one)["rows"] == found(lone, "inspect", of_diffusers)["rows"] == rows
    compared = call(lone, "inspect", one, other)
    assert re.search(r"libraries\.torch +│ 2\.13 +│ 2\.14", compared.stdout)
    assert "cuda" not in compared.stdout
    assert [each["state"] for each in found(lone, "inspect", one, other)] == ["valid", "absent"]
    assert "both have the same name" in call(lone, "inspect", one, one + "2").stdout
    assert "no encoder output" in call(lone, "inspect", one, "image/1").stdout
    with Client(lone.directory.path) as client:
        client.drop(one)


def test_keys_and_inspect_say_what_is_there_and_who_leases_it(lone: LoneFrontend) -> None:
    with Client(lone.directory.path, name="vllm") as client:
        for tenant, key in (("", "image/1"), ("", "image/2"), ("alice", "image/2"), ("", "odd\x1b[2J\x9b\u202e[red]")):
            assert client.put(key, RECORD, tenant=tenant)
        listed = found(lone, "keys")
        assert (listed["num_records"], listed["is_cut"]) == (4, False)
        assert [(k["age"], k["tenant"], k["key"]) for k in listed["keys"]] == [
            (1, "", "odd\x1b[2J\x9b\u202e[red]"),
            (2, "alice", "image/2"),
            (3, "", "image/2"),
            (4, "", "image/1"),
        ]
        assert [k["key"] for k in found(lone, "keys", "--match", "*/2", "--tenant", "")["keys"]] == ["image/2"]
        cut = found(lone, "keys", "--match", "image*", "--limit", "2")
        assert (cut["is_cut"], len(cut["keys"])) == (True, 2)
        table = call(lone, "keys", "--limit", "1").stdout
        assert "odd\\x1b[2J\\x9b\\u202e[red]" in table, (
            "what a client has named is no command to a terminal, and no markup"
        )
        assert "1 of 4 records" in table
        as_json = call(lone, "keys", "--limit", "1", "--json").stdout
        assert '"odd\\u001b[2J\\u009b\\u202e[red]"' in as_json, "nor is it one in JSON"

        before = client.stats().store
        hit = present(client.get("image/1", view=True))
        (reader,) = found(lone, "keys", "--match", "image/1")["keys"][0]["readers"]
        assert reader == {"pid": os.getpid(), "name": "vllm", "leases": 1}
        assert store_readers(lone.directory.path) == [Reader(os.getpid(), "vllm", 1)]
        record = found(lone, "inspect", "image/1")
        assert (record["state"], record["readers"], record["num_values"]) == ("valid", [reader], 1)
        assert [(t["path"], t["dtype"], t["shape"], t["nbytes"]) for t in record["tensors"]] == [
            ("embeds", "float32", [3, 4], 48),
            ("deep.stack[0]", "int64", [5], 40),
        ]
        client.drop("image/1")
        gone = call(lone, "inspect", "image/1")
        assert gone.exit_code == 1
        assert "dropped, and retired for its readers" in gone.stdout
        assert f"leased by vllm (pid {os.getpid()})" in gone.stdout
        del hit
        assert store_readers(lone.directory.path) == []
        assert found(lone, "inspect", "image/1", "--tenant", "bob")["state"] == "absent"
        assert call(lone, "inspect", "nothing").stdout == "nothing: not there\n"
        after = client.stats().store
        assert after.puts == before.puts
        assert after.queries <= before.queries + 1, "the service has heard of our own get alone"
    assert lone.at_rest().store.ring.leases == 0


def test_a_record_that_has_expired_is_not_listed(lone: LoneFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(lone.directory.path) as client:
        assert client.put("short", RECORD, ttl_s=3600)
        record = found(lone, "inspect", "short")
        assert record["state"] == "valid"
        assert 3600 - DEADLINE_S <= record["ttl_s"] <= 3600
        assert "expires in 59 min" in call(lone, "inspect", "short").stdout
        (listed,) = found(lone, "keys", "--match", "short")["keys"]
        assert 0 <= listed["age_s"] <= DEADLINE_S
        assert 3600 - DEADLINE_S <= listed["ttl_s"] <= 3600
        assert "59 min" in call(lone, "keys", "--match", "short").stdout
        client.put("long", RECORD)
        now_ns = time.clock_gettime_ns
        monkeypatch.setattr(time, "clock_gettime_ns", lambda which: now_ns(which) + 3600 * 10**9)
        assert found(lone, "keys", "--match", "short")["keys"] == []
        (listed,) = found(lone, "keys", "--match", "long")["keys"]
        assert 3600 <= listed["age_s"] <= 3600 + DEADLINE_S
        assert listed["ttl_s"] is None
        assert found(lone, "inspect", "long")["ttl_s"] is None
        assert "expires" not in call(lone, "inspect", "long").stdout
        gone = call(lone, "inspect", "short")
        assert (gone.exit_code, gone.stdout.splitlines()[0]) == (1, "short: not there: its time to live is over")
        client.delete("short", "long")


def test_a_long_key_is_whole_and_the_table_is_not_wider_than_140(lone: LoneFrontend) -> None:
    key = "".join(f"{index:03}-" for index in range(40))
    with Client(lone.directory.path) as client:
        assert client.put(key, RECORD)
        lines = call(lone, "keys", "--match", key).stdout.splitlines()
        client.drop(key)
    assert max(map(len, lines)) <= 140
    cells = [line.split("│")[2].strip() for line in lines if line.count("│") > 2]
    assert "".join(cells) == key


def test_they_send_nothing_and_load_no_socket_library(lone: LoneFrontend) -> None:
    program = (
        "import sys, typer\nfrom mmcached.cli.admin import store_verbs\n"
        "app = typer.Typer(); store_verbs.register(app)\n"
        f"try: app(['keys', '--run-dir', {str(lone.directory.path)!r}])\n"
        "except SystemExit as error: print(error.code)\n"
        "print(sorted({'torch', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.stdout.splitlines()[-2:] == ["0", "[]"], done.stderr


def test_a_key_that_is_no_text_is_an_error_in_a_line(lone: LoneFrontend) -> None:
    refused = call(lone, "inspect", "\udcff", "--json")
    assert isinstance(refused.exception, InvalidRequest)
    assert "must be UTF-8" in str(refused.exception)


def test_no_store(run_dir: Path) -> None:
    app = typer.Typer()
    store_verbs.register(app)
    for verb in (["keys"], ["inspect", "x"]):
        result = CliRunner().invoke(app, [*verb, "--run-dir", str(run_dir)])
        assert result.exit_code == 3
        assert "no store in" in result.stderr


def test_a_dead_frontend_is_looked_at_all_the_same(lone: LoneFrontend) -> None:
    """The last test of this file: nobody answers any more."""
    with Client(lone.directory.path) as client:
        assert client.put("late", RECORD)
    lone.kill()
    assert "late" in [k["key"] for k in found(lone, "keys")["keys"]]
    assert found(lone, "inspect", "late")["state"] == "valid"
