"""Names of media: bound once for many that ask at once, resolved with the record that they name, never by mistake."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from mmcached.cache.aliases import alias_key, media_key
from mmcached.client import Client, InvalidRequest, Resolved, Url, contact, media_files, media_names
from mmcached.wire.messages.frontend import ClaimRecord
from tests.client.blocking import BlockingAsync, Make
from tests.client.services import StoreService
from tests.integration.processes import eventually

CAT, DOG = b"a picture of a cat", b"a picture of a dog"
DIGEST = blake3(CAT).hexdigest()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a service that was not there sooner than users do."""
    monkeypatch.setattr(contact, "RETRY_INTERVAL_S", 0.05)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take files that were written just now for settled."""
    monkeypatch.setattr(media_names, "SETTLED_NS", 0)


def output_key(content: str) -> str:
    return f"output/{content}"


def never() -> bytes:
    raise AssertionError("fetched again")


def test_a_name_is_bound_to_content_and_resolved_with_its_record_and_without_a_message(
    service: StoreService, client: Any
) -> None:
    assert client.resolve("cat") is None
    assert client.bind("cat", CAT) == DIGEST
    before = len(service.received)
    found = client.resolve("cat", output_key)
    assert (found.content, found.hit) == (DIGEST, None)
    assert len(service.received) == before
    client.put(output_key(DIGEST), {"embeds": np.ones(3)})
    found = client.resolve("cat", output_key, view=True, tensors="numpy")
    assert found.hit["embeds"].tolist() == [1, 1, 1]
    client.drop(output_key(DIGEST))
    client.flush()
    with client_of(service) as other:
        opened = other.open(found.hit.token, tensors="numpy")
        assert opened is not None, "the lease outlives the record"
        assert opened["embeds"].tolist() == [1, 1, 1]
    assert client.resolve("cat") is None, "a flush drops bindings, too"


def client_of(service: StoreService, **options: Any) -> Client:
    return Client(service.directory.path, **options)


def test_a_bound_name_is_not_fetched_again_until_it_is_forgotten(client: Any) -> None:
    calls: list[int] = []

    def fetch() -> bytes:
        calls.append(1)
        return CAT

    assert [client.bind("cat", fetch), client.bind("cat", fetch), client.bind("cat", never)] == [DIGEST] * 3
    assert client.forget("cat")
    assert client.bind("cat", fetch) == DIGEST
    assert len(calls) == 2


def test_a_name_stands_for_one_content(client: Any) -> None:
    client.bind("cat", CAT)
    assert client.bind("cat", CAT) == DIGEST
    with pytest.raises(InvalidRequest, match="forget it"):
        client.bind("cat", DOG)
    assert client.resolve("cat").content == DIGEST
    client.forget("cat")
    other = client.bind("cat", DOG)
    assert client.resolve("cat").content == other != DIGEST


def test_a_digest_of_the_callers_own_is_taken_as_it_is(client: Any) -> None:
    assert client.bind("cat", "ab" * 16) == "ab" * 16
    assert client.bind("dog", lambda: "cd" * 64) == "cd" * 64
    assert client.resolve("cat").content == "ab" * 16
    for content in ("cat.png", "AB" * 16, "ab" * 15, "../" * 20, "ab" * 65):
        with pytest.raises(InvalidRequest, match="content"):
            client.bind("other", content)


def test_a_binding_expires_and_is_renewed(service: StoreService, client: Any) -> None:
    client.bind("cat", CAT, ttl_s=0.05)
    client.bind("dog", DOG, ttl_s=0.05)
    client.bind("dog", DOG, ttl_s=1000)
    eventually(lambda: client.resolve("cat"), lambda found: found is None, "a binding that has expired")
    assert client.resolve("dog") is not None


def test_names_are_each_tenants_own(service: StoreService, client: Any) -> None:
    client.bind("cat", CAT)
    assert client.resolve("cat", tenant="other") is None
    client.bind("cat", DOG, tenant="other")
    with client_of(service, tenant="other") as other:
        assert other.resolve("cat") == Resolved(blake3(DOG).hexdigest())
    assert client.resolve("cat").content == DIGEST


def test_text_never_equals_the_name_of_a_file_or_of_a_url(client: Any, tmp_path: Path, settled: None) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CAT)
    client.bind(path)
    client.bind(Url("http://h/cat.png", '"1"'), CAT)
    for text in (str(path), f"file:{path}", "http://h/cat.png", 'http://h/cat.png"1"'):
        assert client.resolve(text) is None
    keys = {alias_key("name", "a"), alias_key("url", "a"), alias_key("file", "a"), alias_key("url", "a", "")}
    assert len(keys) == 4


def test_a_url_is_known_with_its_validator_only(client: Any) -> None:
    client.bind(Url("http://h/cat.png", '"1"'), lambda: CAT)
    assert client.resolve(Url("http://h/cat.png", '"1"')).content == DIGEST
    assert client.resolve(Url("http://h/cat.png", '"2"')) is None
    for validator in ('W/"1"', "", "x" * 9000):
        with pytest.raises(InvalidRequest, match="validator"):
            Url("http://h/cat.png", validator)


def test_a_known_file_is_not_opened_and_a_changed_one_is_another(
    client: Any, tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CAT)
    assert client.resolve(path) is None
    assert client.bind(path) == DIGEST
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", never)
        assert client.resolve(path).content == DIGEST
        assert client.bind(path) == DIGEST
    status = path.stat()
    path.write_bytes(DOG)  # of the same size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert client.resolve(path) is None, "nobody can set the time of the change"
    with pytest.raises(InvalidRequest, match="cannot be read"):
        client.resolve(tmp_path / "none.png")
    with pytest.raises(InvalidRequest, match="regular"):
        client.bind(tmp_path)


def test_a_file_that_changes_or_has_just_changed_is_not_bound(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CAT)
    monkeypatch.setattr(media_names, "SETTLED_NS", 1 << 60)
    assert client.bind(path) == DIGEST
    assert client.resolve(path) is None
    monkeypatch.setattr(media_names, "SETTLED_NS", 0)
    read = media_files.read_open

    def read_and_append(*values: Any) -> bytes:
        data = read(*values)
        with path.open("ab") as file:
            file.write(b"!")
        return data

    monkeypatch.setattr(media_names, "read_open", read_and_append)
    assert client.bind(path) == DIGEST
    assert client.resolve(path) is None


def test_a_kept_file_is_there_for_whoever_finds_the_name(service: StoreService, client: Any) -> None:
    client.bind("cat", lambda: CAT, keeps_file=True)
    with client_of(service) as other:
        found = other.resolve("cat", media_key, view=True, tensors="numpy")
        assert found is not None
        assert found.hit is not None
        assert found.hit["file"].tobytes() == CAT
    client.bind("dog", DOG)
    assert client.resolve("dog", media_key).hit is None
    with pytest.raises(InvalidRequest, match="content"):
        client.bind("bird", "ab" * 16, keeps_file=True)


@pytest.mark.parametrize("fetch", [lambda: 5, lambda: None, lambda: "cat.png"])
def test_a_function_that_returns_no_content_binds_nothing_and_blocks_nobody(
    client: Any, fetch: Callable[[], Any]
) -> None:
    with pytest.raises(InvalidRequest, match="content"):
        client.bind("cat", fetch)
    assert client.bind("cat", lambda: CAT, timeout_s=5) == DIGEST


def test_who_asks_at_once_waits_for_one_fetch(service: StoreService, run_dir: Path) -> None:
    calls: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def fetch() -> bytes:
        calls.append(1)
        begun.set()
        assert go_on.wait(30)
        return CAT

    found: list[str] = []

    def ask() -> None:
        with Client(run_dir) as client:
            found.append(client.bind("cat", fetch, timeout_s=30, keeps_file=True))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    try:
        eventually(lambda: service.count(ClaimRecord), lambda count: count == 8, "claims")
    finally:
        go_on.set()
        for thread in threads:
            thread.join(30)
    assert found == [DIGEST] * 8
    assert len(calls) == 1


def test_another_caller_fetches_if_the_first_one_fails(client: Any) -> None:
    def fail() -> bytes:
        raise OSError("the server of the URL is down")

    with pytest.raises(OSError, match="down"):
        client.bind("cat", fail)
    assert client.bind("cat", lambda: CAT, timeout_s=5) == DIGEST


def test_a_binding_of_another_form_is_no_binding(client: Any) -> None:
    key = alias_key("name", "cat")
    for record in ({"content": 5}, {"content": "../../etc"}, {"other": 1}):
        client.put(key, record, overwrite=True)
        assert client.resolve("cat") is None
    with pytest.raises(InvalidRequest, match="forget"):
        client.bind("cat", never)


def test_without_a_service_names_are_unknown_and_content_is_fetched(run_dir: Path, make: Make) -> None:
    with make(run_dir) as client:
        assert client.resolve("cat") is None
        assert client.bind("cat", lambda: CAT) == DIGEST
        assert client.bind("cat", CAT, keeps_file=True) == DIGEST
        assert not client.forget("cat")


def test_content_is_hashed_as_the_service_does_also_by_a_client_that_was_there_before_it(
    run_dir: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "RETRY_INTERVAL_S", 0)
    with make(run_dir) as client:
        assert client.resolve("cat") is None
        with StoreService(run_dir, mm_hasher_algorithm="sha256"):
            assert client.bind("cat", CAT) == hashlib.sha256(CAT).hexdigest()
            assert client.bind("dog", lambda: DOG) == hashlib.sha256(DOG).hexdigest()


@pytest.mark.parametrize("name", ["", "x" * 9000, None, 5, b"cat", "\ud800"])
def test_names_are_checked(client: Any, name: Any) -> None:
    for call in (client.resolve, client.forget, lambda name: client.bind(name, CAT)):
        with pytest.raises(InvalidRequest, match="name"):
            call(name)
    with pytest.raises(InvalidRequest, match="content"):
        client.bind("cat")


def test_an_async_client_takes_a_coroutine_function(service: StoreService, run_dir: Path) -> None:
    async def fetch() -> bytes:
        return CAT

    with BlockingAsync(run_dir) as client:
        assert client.bind("cat", fetch) == DIGEST
        assert client.resolve("cat").content == DIGEST
