"""The page for users of redis-py: each row is run with a real store and, where one is installed, a real Redis."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from mmcached.client import AsyncClient, Client
from tests.docs.pages import code
from tests.house import REPOSITORY
from tests.integration.local_service import LocalService
from tests.integration.processes import small_config
from tests.second_level.servers import Server, find_program, short_folder

PAGE = REPOSITORY / "docs" / "from-redis.md"
ROWS = re.findall(r"^\| ([A-Z][^|]+) \| `([^`]+)` \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
ARRAY = np.ones((2, 3), np.float32)


def tower(array: Any) -> Any:
    return 2 * array


def run(text: str, names: dict[str, Any]) -> None:
    """Run the code of a cell; it may await."""
    compiled = compile(text, PAGE.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if result is not None:
        asyncio.run(result)


def test_our_calls_do_the_tasks(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"Client": Client, "AsyncClient": AsyncClient, "array": ARRAY, "tower": tower}
    (example,) = code(PAGE, "py")
    with LocalService(run_dir, small_config(world_size=1)), Client(run_dir) as looking:
        run(example.replace("/tmp/mmcached", str(run_dir)), names)
        names["client"].close()
        for task, _, ours in ROWS:
            run(ours.replace("/tmp/mmcached", str(run_dir)), names)
            match task:
                case "Connect":
                    client = names["client"]
                case "Replace a value":
                    assert np.array_equal(hit_of(looking, "a"), 2 * ARRAY)
                case "Store a value for a minute":
                    assert np.array_equal(hit_of(looking, "d"), ARRAY)
                case "Delete values":
                    assert looking.get("a") is None
                case "Keep customers apart":
                    assert [looking.get("c", tenant=each) is None for each in ("", "alice")] == [True, False]
                case "Cache a function":
                    assert np.array_equal(names["embed"]("cat"), hit_of(looking, "embed/cat"))
                case "Count keys":
                    assert names["num_keys"] == 5, "pair, b, embed/cat, images/d, and photo-1 of the example"
                case "Forget everything":
                    assert looking.get("b") is None
        client.close()
    assert capsys.readouterr().out == "(2, 3)\n"
    assert np.array_equal(names["b"], 2 * ARRAY)
    check_answers(names)


def hit_of(client: Client, key: str) -> Any:
    hit = client.get(key, tensors="numpy")
    assert hit is not None
    return hit.tensor()


def check_answers(names: dict[str, Any]) -> None:
    """Check what the rows of both columns have bound."""
    assert np.array_equal(names["x"], ARRAY)
    assert np.array_equal(names["y"], ARRAY)
    assert [names[name] for name in ("is_up", "is_new", "is_missing", "is_there")] == [True] * 4
    assert [each is None for each in names["found"]] == [False, True]
    assert names["exists"] == [True, False]
    assert names["num_deleted"] == 1
    assert names["keys"] == ["images/d"]
    assert names["hits"] > 0


@pytest.mark.skipif(find_program("redis-server") is None, reason="redis-server is not installed")
def test_the_calls_of_redis_py_do_the_tasks() -> None:
    program = find_program("redis-server")
    assert program is not None
    names: dict[str, Any] = {"redis": redis, "np": np, "array": ARRAY, "tower": tower}
    with short_folder() as folder, Server(program, folder) as server:
        for task, theirs, _ in ROWS:
            run(theirs.replace("/run/redis.sock", str(server.socket)), names)
            match task:
                case "Connect":
                    connected = names["r"]
                case "Count keys":
                    assert names["num_keys"] == 3, "pair, b and images/d"
        connected.close()
    check_answers(names)
