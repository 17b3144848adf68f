"""What both clients promise of decorated functions and of namespaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import Client, InvalidRequest
from mmcached.client.cached_functions import key_function
from tests.client.blocking import BlockingAsync
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService


def run(client: Any, outcome: Any) -> Any:
    """Return what a call returns, of either client."""

    async def wait() -> Any:
        return await outcome

    return client._runner.run(wait()) if isinstance(client, BlockingAsync) else outcome


def test_a_decorated_function_is_computed_once_for_each_key(client: Any) -> None:
    calls: list[tuple[str, int]] = []

    @client.cached(key="embed/{name}@{size}", tensors="numpy")  # type: ignore[untyped-decorator]
    def embed(name: str, size: int = 3) -> Any:
        """Say what is computed."""
        calls.append((name, size))
        return np.full(size, ord(name[0]))

    found = [run(client, embed(*call)) for call in (("cat",), ("cat", 3), ("cat", 2), ("dog",))]
    assert [array.tolist() for array in found] == [[99] * 3, [99] * 3, [99] * 2, [100] * 3]
    assert calls == [("cat", 3), ("cat", 2), ("dog", 3)]
    assert sorted(client.keys()) == ["embed/cat@2", "embed/cat@3", "embed/dog@3"]
    assert run(client, embed(size=2, name="cat")).tolist() == [99] * 2
    assert len(calls) == 3
    assert (embed.__name__, embed.__doc__) == ("embed", "Say what is computed.")
    assert inspect.iscoroutinefunction(embed) == isinstance(client, BlockingAsync)


def test_a_function_may_make_the_key_and_errors_are_the_functions_own(client: Any) -> None:
    @client.cached(key=lambda array, **named: f"sum/{array.sum()}", tenant="other")  # type: ignore[untyped-decorator]
    def double(array: Any, fails: bool = False) -> Any:
        if fails:
            raise ZeroDivisionError
        return {"x": 2 * array}

    with pytest.raises(ZeroDivisionError):
        run(client, double(np.ones(2), fails=True))
    assert is_equal(run(client, double(np.ones(2)))["x"], 2 * np.ones(2))
    assert client.keys(tenant="other") == ["sum/2.0"]
    assert client.keys() == []


def test_an_async_client_takes_coroutine_functions_and_a_client_refuses_them(
    service: StoreService, run_dir: Path
) -> None:
    async def embed(name: str) -> Any:
        return {"name": name}

    with BlockingAsync(run_dir) as client:
        cached = client.cached(key="{name}")(embed)
        assert [run(client, cached("cat")) for _ in range(2)] == [{"name": "cat"}] * 2
        assert client.keys() == ["cat"]
    with Client(run_dir) as plain, pytest.raises(InvalidRequest, match="AsyncClient takes coroutine functions"):
        plain.cached(key="{name}")(embed)  # type: ignore[type-var]


def one(name: Any, *rest: Any) -> Any:
    return name


@pytest.mark.parametrize("key", ["constant", "{other}", "{}", "{0}", "{name", "{name}{other.x}", 5, None, b"{name}"])
def test_a_key_that_tells_nothing_apart_or_names_no_argument_is_refused(key: Any) -> None:
    with pytest.raises(InvalidRequest, match="key"):
        key_function(one, key)


def test_a_template_takes_what_its_text_is_all_of() -> None:
    key_of = key_function(one, "{name}/{rest[0].stem}")
    assert key_of("a", Path("b.png")) == "a/b"
    assert [key_function(one, "{name}")(value) for value in (1, 2.5, None, True)] == ["1", "2.5", "None", "True"]
    for wrong in (np.zeros(5000), [1], {"a": 1}, object(), b"bytes"):
        with pytest.raises(InvalidRequest, match="give a function as `key`"):
            key_function(one, "{name}")(wrong)
    assert key_function(lambda: 1, "constant")() == "constant"
    not_functions: list[Any] = [5, None]
    for wrong in not_functions:
        with pytest.raises(InvalidRequest, match="fn"):
            key_function(wrong, "k")


def test_a_key_that_is_no_key_is_refused_in_the_call(client: Any) -> None:
    bad: list[Callable[..., Any]] = [lambda name: 5, lambda name: "x" * 257]
    for key in bad:
        with pytest.raises(InvalidRequest, match="key"):
            run(client, client.cached(key=key)(lambda name: {})("cat"))
    with pytest.raises(InvalidRequest, match="tensors"):
        client.cached(key="{name}", tensors="jax")


def test_a_namespace_has_its_own_keys(client: Any) -> None:
    inner: Any = client._client if isinstance(client, BlockingAsync) else client
    cats, dogs, odd = (inner.namespace(name) for name in ("cats", "dogs", "c[a]*"))
    for space, seed in ((cats, 1), (dogs, 2), (odd, 3)):
        assert run(client, space.put("k", numbers(seed)))
        assert run(client, space.get("k", tensors="numpy"))["seed"] == seed
    assert run(client, cats.get_or_compute("new", lambda: np.ones(2), tensors="numpy")).tolist() == [1, 1]
    assert [run(client, space.exists("new")) for space in (cats, dogs)] == [True, False]
    assert run(client, cats.keys()) == ["new", "k"]
    assert run(client, cats.keys("n*")) == ["new"]
    assert run(client, odd.keys()) == ["k"], "its name is no pattern"
    assert sorted(client.keys()) == ["c[a]*/k", "cats/k", "cats/new", "dogs/k"]
    assert run(client, cats.delete("k", "none")) == 1
    assert run(client, dogs.exists("k"))
    assert repr(cats).startswith(f"{type(cats).__name__}('cats' of ")


def test_a_namespace_takes_keys_as_the_client_does(client: Any) -> None:
    inner: Any = client._client if isinstance(client, BlockingAsync) else client
    do = partial(run, client)
    space, other = inner.namespace("a"), inner.namespace("a/b")
    assert do(space.put("k", {"x": 1}))
    assert do(other.put("k", {"x": 2}, overwrite=True, ttl_s=3600))
    assert [hit and hit["x"] for hit in do(space.get_many(["k", "none", "b/k"]))] == [1, None, 2]
    assert do(space.contains_many(["k", "none"])) == [True, False]
    found, claim = do(space.claim_many(["k", "new"]))
    assert (found["x"], claim.key) == (1, "a/new")
    assert do(space.put("new", {"x": 3}, claim=claim))
    assert client.get("a/new")["x"] == 3
    assert (do(space.drop("new")), do(space.exists("new"))) == (True, False)
    for call in (space.get_many, space.contains_many, space.claim_many):
        with pytest.raises(InvalidRequest, match="sequence"):
            do(call("k"))


def test_a_namespace_is_a_container(service: StoreService, run_dir: Path) -> None:
    with Client(run_dir) as client:
        space = client.namespace("a")
        assert (len(space), bool(space), "k" in space) == (0, True, False)
        space.put("k", {"x": 1})
        client.put("k", {"x": 1})
        assert (len(space), "k" in space, "a/k" in space, len(client)) == (1, True, False, 2)


def test_what_a_namespace_cannot_take_is_refused(client: Any) -> None:
    inner: Any = client._client if isinstance(client, BlockingAsync) else client
    for wrong in ("", 5, None, b"x", "x" * 256):
        with pytest.raises(InvalidRequest, match="name"):
            inner.namespace(wrong)
    space = inner.namespace("x" * 200)
    for call in (space.get, space.exists, lambda key: space.put(key, {}), space.delete):
        for key in (5, None, "k" * 100):
            with pytest.raises(InvalidRequest, match="key"):
                run(client, call(key))
