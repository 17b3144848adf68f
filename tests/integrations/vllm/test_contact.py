"""A step never waits for a service that is not there; one that comes, or comes back, is found beside the steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmcached.client import Claim, Client
from mmcached.integrations.vllm import contact as module
from mmcached.integrations.vllm.contact import ReconnectingClient
from mmcached.wire.messages.frontend import ClaimRecords
from tests.client.services import StoreService
from tests.clock import Clock
from tests.integration.processes import eventually
from tests.integrations.vllm.steps import DEADLINE_S

NewContact = Callable[..., ReconnectingClient]


def nothing(client: Client) -> None:
    """Prepare nothing."""


@pytest.fixture
def new_contact(run_dir: Path) -> Iterator[NewContact]:
    contacts: list[ReconnectingClient] = []

    def make(
        prepare: Callable[[Client], None] = nothing, call_timeout_s: float = 5.0, clock: Clock | None = None
    ) -> ReconnectingClient:
        contacts.append(
            ReconnectingClient(
                lambda: Client(run_dir, fail_open=False, connect_timeout_s=0.05),
                prepare,
                call_timeout_s=call_timeout_s,
                retry_s=0.01,
                clock=clock or Clock(),
            )
        )
        return contacts[-1]

    yield make
    for contact in contacts:
        contact.close()
        contact.close()


def test_a_service_that_comes_later_is_found(run_dir: Path, new_contact: NewContact) -> None:
    contact = new_contact()
    assert not contact.wait(0.2)
    assert contact.look_up(["k"]) == [None]
    assert not contact.ask(["k"])
    with StoreService(run_dir):
        assert contact.wait(DEADLINE_S)
        assert claim(contact, "k").is_exclusive
        contact.close()
    assert not contact.is_there


def test_a_service_that_ends_is_found_again(run_dir: Path, new_contact: NewContact) -> None:
    contact = new_contact(call_timeout_s=0.05)
    with StoreService(run_dir):
        assert contact.wait(DEADLINE_S)
    while contact.is_there:
        assert contact.look_up(["k"]) == [None]
    with StoreService(run_dir), Client(run_dir) as client:
        client.put("k", {"x": 1})
        assert contact.wait(DEADLINE_S)
        (hit,) = contact.look_up(["k"])
        assert hit is not None
        del hit
        contact.close()


def test_a_service_that_does_not_answer_is_not_asked_for_a_while(
    run_dir: Path, new_contact: NewContact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_S", 0.05)
    clock = Clock()
    contact = new_contact(clock=clock)
    with StoreService(run_dir) as store:
        assert contact.wait(DEADLINE_S)
        store.hold = (ClaimRecords,)
        assert not claim(contact, "k").is_exclusive
        assert not contact.ask(["k"])
        assert contact.is_there, "what is there is still found"
        clock.now += 1.0
        assert not claim(contact, "k").is_exclusive
        assert store.count(ClaimRecords) == 2
        store.release()
        contact.close()


def claim(contact: ReconnectingClient, key: str) -> Claim:
    """Ask who encodes an item; return the claim that is the answer."""
    assert contact.ask([key])
    while not (answers := contact.take_answers()):
        pass  # the test's own deadline ends it
    ((asked, found),) = answers
    assert asked == key
    assert isinstance(found, Claim)
    return found


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


def test_what_cannot_be_prepared_is_said_once(
    run_dir: Path, new_contact: NewContact, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[Client] = []

    def fail(client: Client) -> None:
        attempts.append(client)
        raise OSError("no such checkpoint")

    with caplog.at_level(logging.WARNING, "vllm.mmcached"), StoreService(run_dir):
        contact = new_contact(fail)
        while len(attempts) < 3:
            assert not contact.is_there
        contact.close()
    assert len([text for text in said(caplog) if "no such checkpoint" in text]) == 1


def test_the_log_says_when_sharing_begins_ends_and_begins_again(
    run_dir: Path, new_contact: NewContact, caplog: pytest.LogCaptureFixture
) -> None:
    """At the level that vLLM logs by default."""
    with caplog.at_level(logging.INFO, "vllm.mmcached"):
        contact = new_contact(call_timeout_s=0.05)
        with StoreService(run_dir):
            assert contact.wait(DEADLINE_S)
        while contact.is_there:
            contact.look_up(["k"])
        with StoreService(run_dir):
            assert contact.wait(DEADLINE_S)
            eventually(lambda: said(caplog)[-1], lambda last: last.endswith("again"), "the last line")
            contact.close()
    assert "INFO mmcached: encoder outputs are shared with the engines of this host" in said(caplog)
    assert said(caplog)[-1] == "INFO mmcached: encoder outputs are shared again"


def test_the_log_says_when_the_service_answers_about_new_items_again(
    run_dir: Path, new_contact: NewContact, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLAIM_S", 0.05)
    clock = Clock()
    contact = new_contact(clock=clock)
    with caplog.at_level(logging.INFO, "vllm.mmcached"), StoreService(run_dir) as store:
        assert contact.wait(DEADLINE_S)
        store.hold = (ClaimRecords,)
        assert not claim(contact, "k").is_exclusive
        store.release()
        clock.now += 1.0
        monkeypatch.setattr(module, "CLAIM_S", DEADLINE_S)
        assert claim(contact, "k").is_exclusive
        contact.close()
    warning, ended = said(caplog)[-2:]
    assert warning.startswith("WARNING mmcached: new items are encoded by every engine that needs them")
    assert ended == "INFO mmcached: new items are encoded by one engine again"
