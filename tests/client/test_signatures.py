"""A client's methods show in `help` what a caller passes and gets, and nothing of verbs."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, get_type_hints

import pytest

from mmcached.client import AsyncClient, Client, Hit
from mmcached.client.calls import Calls
from mmcached.client.results import Piece

NOT_OFFERED = {"connect", "contents_of_names", "kept_file", "lend", "look", "put_encoded", "sees"}


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name, method in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


CALLS = methods(Calls)


def test_both_clients_offer_every_call() -> None:
    own = {"cached", "close", "namespace", "store_counters"}
    assert set(methods(Client)) == set(methods(AsyncClient)) == CALLS.keys() - NOT_OFFERED | own


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_method_shows_the_arguments_of_its_call_and_its_own_result(kind: type) -> None:
    for name, method in methods(kind).items():
        signature, hints = inspect.signature(method), get_type_hints(method)
        for text in (str(signature), str(hints)):
            assert "Verb" not in text, name
            assert "PieceStream" not in text, name
        assert method.__annotations__.get("return") == signature.return_annotation
        if name in CALLS:
            assert list(signature.parameters.values()) == list(inspect.signature(CALLS[name]).parameters.values())
            assert inspect.iscoroutinefunction(method) == (kind is AsyncClient and name != "generate_stream")
    results = {name: get_type_hints(method)["return"] for name, method in methods(kind).items()}
    assert results["get"] == Hit | None
    assert results["encode"] == list[Any]
    assert results["flush"] is type(None)
    assert results["generate_stream"] == (Generator[Piece] if kind is Client else AsyncGenerator[Piece])
