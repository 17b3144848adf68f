"""A client finds what the encoder has said of an image by itself, under the name that the service gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from mmcached.cache.store_keys import output_key
from mmcached.client import Client
from mmcached.client.contact import Contact, Deadline
from mmcached.client.known_outputs import contents_of, output_keys
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.client import Welcome
from mmcached.wire.messages.frontend import Encode
from tests.client.blocking import Make
from tests.client.services import StoreService

FILES = [b"a file with 24 bytes ...", b"another with 20 byte"]


def welcome(fingerprint: str = "f") -> Welcome:
    return Welcome("fake", 258, 257, 64, 8192, encoder_fingerprint=fingerprint, item_fingerprints={"image": "p"})


def put(run_dir: Path, *files: bytes, tenant: str = "") -> torch.Tensor:
    """Put an output for each file, as a worker does that has encoded it; return the last."""
    with Client(run_dir, tenant=tenant) as worker:
        output = torch.empty(0)
        for key in output_keys(welcome(), contents_of(welcome(), files), [], tenant).values():
            output = torch.arange(6, dtype=torch.int32).reshape(2, 3) + len(key)
            assert worker.put(key, {"embeddings": output})
    return output


@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
def test_names_are_those_of_the_service(algorithm: Literal["blake3", "sha256"]) -> None:
    processing = Processing(ServiceConfig(mm_hasher_algorithm=algorithm))
    said = Welcome(
        *("fake", 258, 257, 64, 8192),
        encoder_fingerprint="f",
        item_fingerprints=dict(processing.fingerprints),
        hasher_algorithm=algorithm,
    )
    key = output_key("f", processing.keys(Medium("image", FILES[0], "images[0]"), "tenant")[1])
    contents = contents_of(said, [FILES[0], b""])
    assert output_keys(said, contents, [None, "cat"], "tenant") == {0: key}, "the service saves none of a name"
    assert list(output_keys(said, contents_of(said, FILES), [], "tenant")) == [0, 1]
    assert output_keys(welcome(""), contents_of(welcome(""), FILES), [], "tenant") == {}


def test_what_was_encoded_before_is_found_without_asking(known: StoreService, client: Any, run_dir: Path) -> None:
    output = put(run_dir, FILES[0])
    (found,) = client.encode([FILES[0]])
    assert torch.equal(found, output)
    found.add_(1)  # it is the caller's own
    assert torch.equal(client.encode([FILES[0]])[0], output)
    assert known.count(Encode) == 0


def test_only_what_is_not_there_is_asked_for(known: StoreService, client: Any, run_dir: Path) -> None:
    output = put(run_dir, FILES[0])
    new, old, other = client.encode([FILES[1], FILES[0], b"8 bytes."])
    assert torch.equal(old, output)
    assert [new.numpy().tobytes(), other.numpy().tobytes()] == [FILES[1], b"8 bytes."]
    (asked,) = known.encodes()
    assert asked.image_ids == []


def test_a_named_image_is_asked_for(known: StoreService, client: Any, run_dir: Path) -> None:
    output = put(run_dir, FILES[0])
    found, named = client.encode([FILES[0], FILES[0]], image_ids=[None, "cat"])
    assert torch.equal(found, output)
    assert named.numpy().tobytes() == FILES[0]
    assert [message.image_ids for message in known.encodes()] == [["cat"]]


def test_a_view_is_a_lease_and_another_tenants_output_is_none(known: StoreService, client: Any, run_dir: Path) -> None:
    put(run_dir, FILES[0], tenant="another")
    output = put(run_dir, FILES[1])
    found = client.encode([FILES[1]], view=True)
    assert torch.equal(found[0], output)
    assert known.leases == 1
    found.clear()
    client.get("whatever")
    assert known.leases == 0
    assert client.encode([FILES[0]])[0].numpy().tobytes() == FILES[0]


def test_it_is_found_while_the_frontend_hangs(known: StoreService, client: Any, run_dir: Path) -> None:
    output = put(run_dir, FILES[0])
    assert torch.equal(client.encode([FILES[0]])[0], output)
    known.hold = (object,)  # it says nothing more
    assert torch.equal(client.encode([FILES[0]])[0], output)
    with pytest.raises(DeadlineExceeded):
        client.encode([FILES[1]], timeout_s=0.1)


def test_what_is_looked_for_first_does_not_make_a_call_longer(
    known: StoreService, client: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[Deadline] = []
    take = Contact.deadline

    def deadline(contact: Contact, timeout_s: float | None) -> Deadline:
        deadlines.append(take(contact, timeout_s))
        return deadlines[-1]

    monkeypatch.setattr(Contact, "deadline", deadline)
    assert client.encode([FILES[0]], timeout_s=9.0)[0].numpy().tobytes() == FILES[0]
    assert [each.timeout_s for each in deadlines] == [9.0]


@pytest.mark.parametrize("view", [False, True])
def test_what_has_just_been_encoded_comes_through_the_store(
    known: StoreService, client: Any, run_dir: Path, view: bool
) -> None:
    output = put(run_dir, FILES[0])
    known.keys[FILES[1]] = next(iter(output_keys(welcome(), contents_of(welcome(), FILES[:1]), [], "").values()))
    made = client.encode([b"8 bytes.", FILES[1]], view=view)
    assert made[0].numpy().tobytes() == b"8 bytes."
    assert torch.equal(made[1], output)
    assert known.leases == int(view)
    assert known.count(Encode) == 1
    made.clear()


def test_what_is_named_and_gone_is_asked_for_once_more(known: StoreService, client: Any, run_dir: Path) -> None:
    known.keys[FILES[1]] = "nothing is there"
    (new, other) = client.encode([b"8 bytes.", FILES[1]])
    assert [new.numpy().tobytes(), other.numpy().tobytes()] == [b"8 bytes.", FILES[1]]
    asked = known.encodes()
    assert [message.takes_keys for message in asked] == [True, False]


def test_who_does_not_read_the_store_takes_no_keys(run_dir: Path, make: Make) -> None:
    with StoreService(run_dir, store_gb=0) as service, make(run_dir) as client:
        service.encoder_fingerprint = "f"
        client.encode([FILES[0]])
        assert [message.takes_keys for message in service.encodes()] == [False]


def test_another_encoder_is_asked(known: StoreService, client: Any, run_dir: Path) -> None:
    put(run_dir, FILES[0])
    known.call(lambda: known.listener.try_send(known.peers[next(iter(known.peers))], welcome("g")))
    client.probe()  # behind which the news has come
    assert client.encode([FILES[0]])[0].numpy().tobytes() == FILES[0]


def test_without_a_fingerprint_all_are_asked_for(service: StoreService, client: Any, run_dir: Path) -> None:
    put(run_dir, FILES[0])
    assert client.encode([FILES[0]])[0].numpy().tobytes() == FILES[0]
    assert np.array_equal(client.encode(FILES)[1].numpy(), np.frombuffer(FILES[1], np.int32))
