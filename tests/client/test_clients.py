"""What both clients promise of every call: deadlines, typed errors, foreign answers, and last words to the service."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Client
from mmcached.client.arguments import Options
from mmcached.client.calls import Calls
from mmcached.client.links.thread_link import ThreadLink, ThreadWaiter
from mmcached.client.results import embeddings_from
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.verb import Verb, drive
from mmcached.shm.files.lock_file import is_held
from mmcached.wire.errors import (
    CacheMiss,
    ClientClosed,
    CorruptImage,
    DeadlineExceeded,
    InvalidRequest,
    RemoteProtocolError,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.messages.client import Encoded, Failed, Generated, Stats, ToClient
from mmcached.wire.messages.frontend import (
    Cancel,
    ClaimRecord,
    ClaimRecords,
    ClientBye,
    ClientHello,
    DropRecord,
    Encode,
    FromClient,
    Generate,
    PutRecord,
)
from mmcached.wire.messages.parts import Tensor
from mmcached.wire.paths import RunDir
from tests.client.blocking import Make
from tests.client.services import StoreService, fake_service, silent
from tests.integration.processes import eventually


def echo(message: FromClient) -> list[ToClient]:
    """Answer each generation with its own prompt tokens, after a late answer to somebody else."""
    if not isinstance(message, Generate):
        return []
    tokens = list(message.prompt.encode()) if isinstance(message.prompt, str) else message.prompt
    late = Generated(message.request_id + 1000, [1], "stop", 1, 0)
    return [late, Generated(message.request_id, tokens, "length", len(tokens), 0, text=str(message.prompt))]


def test_answer_to_another_request_is_not_taken(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, echo), make(run_dir) as client:
        assert client.service.service_id == "fake"
        assert client.generate("abc").text == "abc"
        assert client.generate([7, 8, 9]).tokens == [7, 8, 9]


@pytest.mark.parametrize("error", [CorruptImage("images[0]", "cat.png", "no image"), CacheMiss(["cat"])])
def test_error_arrives_as_its_own_class_with_its_details(run_dir: Path, make: Make, error: Any) -> None:
    def refuse(message: FromClient) -> list[ToClient]:
        is_asked = isinstance(message, Generate | Encode)
        return [Failed(message.request_id, error_to_wire(error))] if is_asked else []  # type: ignore[union-attr]

    with fake_service(run_dir, refuse) as received, make(run_dir) as client:
        for verb in (client.encode, partial(client.generate, "<image>")):
            with pytest.raises(type(error)) as caught:
                verb([None], image_ids=["cat"])
            assert caught.value.details == error.details
            assert caught.value.retryable == error.retryable
        assert not [message for message in received if isinstance(message, Cancel)], "the service has ended it"


def test_silence_is_a_deadline_and_the_request_is_cancelled(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, silent) as received:
        with make(run_dir) as client, pytest.raises(DeadlineExceeded) as caught:
            client.generate("x", timeout_s=0.05)
        assert caught.value.retryable
        assert caught.value.details["timeout_s"] == 0.05
        asked = next(message for message in received if isinstance(message, Generate))
        eventually(lambda: [type(m) for m in received][-2:], lambda last: last == [Cancel, ClientBye], "last words")
        assert Cancel(asked.client_id, asked.request_id) in received


def test_no_call_waits_beyond_its_deadline(run_dir: Path) -> None:
    """What the contact has left of the time is for the answer, and not a moment more."""
    waits: list[float] = []

    class HastyLink(ThreadLink):
        def wait(self, waiter: ThreadWaiter, deadline: float) -> None:
            waits.append(deadline - time.monotonic())
            if not waiter.is_greeting:
                raise TimeoutError
            super().wait(waiter, deadline)

    with fake_service(run_dir, silent):
        calls = Calls(RunDir(run_dir), Options(50.0, 30.0, "", True), FailOpen(is_open=False), HastyLink)
        limit: dict[str, Any] = {"timeout_s": 40.0}
        verbs: list[Verb[Any]] = [
            calls.generate("x", **limit),
            calls.generate_stream("x", **limit).next_piece(),
            calls.encode([b"x"], **limit),
            calls.get_or_compute("k", dict, **limit),
            calls.stats(**limit),
            calls.probe(**limit),
        ]
        for verb in verbs:
            with pytest.raises(TimeoutError):
                drive(verb)
        calls.contact.close()
    assert len(waits) >= 1 + 6
    assert max(waits) <= 40.0


VERBS: dict[str, tuple[Any, ...]] = {
    "generate": ("x",),
    "encode": ([b"x"],),
    "get": ("k",),
    "get_many": (["k"],),
    "contains_many": (["k"],),
    "claim_many": (["k"],),
    "put": ("k", {}),
    "get_or_compute": ("k", dict),
    "drop": ("k",),
    "open": (f"{'0' * 32}.1.0.1",),
    "invalidate": (),
    "flush": (),
    "stats": (),
    "processor_info": (),
    "probe": (),
}


@pytest.mark.parametrize("fail_open", [True, False])
def test_every_call_of_a_closed_client_says_so_and_is_not_tried_again(
    run_dir: Path, make: Make, fail_open: bool
) -> None:
    with StoreService(run_dir) as service, make(run_dir, fail_open=fail_open) as client:
        client.put("k", {"x": 1})
        client.close()
        asked = len(service.received)
        for verb, values in VERBS.items():
            with pytest.raises(ClientClosed) as caught:
                getattr(client, verb)(*values)
            assert not caught.value.retryable, verb
        with pytest.raises(ClientClosed):
            next(client.generate_stream([1]))
        service.call(lambda: None)
        assert not [message for message in service.received[asked:] if not isinstance(message, ClientBye | Cancel)]


@pytest.mark.parametrize("fail_open", [True, False])
def test_calls_that_are_under_way_when_another_thread_closes_the_client_say_so(run_dir: Path, fail_open: bool) -> None:
    """Also where an error of the service is a miss: nothing is computed for it."""
    calls: list[Callable[[Client], object]] = [
        lambda client: client.get_or_compute("k", pytest.fail),
        lambda client: client.claim_many(["l"]),
        lambda client: client.put("m", {"x": 1}),
        lambda client: client.drop("n"),
    ]
    with (
        StoreService(run_dir) as service,
        Client(run_dir, fail_open=fail_open) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        client.get("k")  # in contact
        service.hold = (ClaimRecord, ClaimRecords, PutRecord, DropRecord)
        futures = [pool.submit(call, client) for call in calls]
        eventually(lambda: service.num_held, lambda count: count == len(calls), "calls")
        client.close()
        for future in futures:
            with pytest.raises(ClientClosed):
                future.result(60)


def test_presence_is_held_while_the_client_lives(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, silent):
        with make(run_dir):
            (lock,) = (run_dir / "clients").iterdir()
            assert is_held(lock)
        assert not lock.exists()


@pytest.mark.parametrize(
    "tensor",
    [Tensor(0, "int32", (1,)), Tensor(0, "no_such_dtype", (0,)), Tensor(3, "int32", (0,)), Tensor(0, "nn", (0,))],
)
def test_tensor_that_does_not_fit_its_frame_is_a_protocol_error(run_dir: Path, make: Make, tensor: Tensor) -> None:
    def answer(message: FromClient) -> list[ToClient]:
        return [Encoded(message.request_id, [{"embeddings": tensor}])] if isinstance(message, Encode) else []

    with fake_service(run_dir, answer), make(run_dir) as client, pytest.raises(RemoteProtocolError):
        client.encode([b"x"])


def test_several_outputs_of_an_encoder_keep_their_names() -> None:
    tensors = [Tensor(frame, "float32", (1,)) for frame in range(3)]
    message = Encoded(1, [{"embeddings": tensors[0]}, {"b": tensors[1], "a": tensors[2]}])
    one, several = embeddings_from(message, [struct.pack("<f", value) for value in range(3)])
    assert one.tolist() == [0.0]
    assert [(name, tensor.tolist()) for name, tensor in several.items()] == [("b", [1.0]), ("a", [2.0])]


def test_outputs_come_in_the_library_that_is_asked_for() -> None:
    message = Encoded(1, [{"embeddings": Tensor(0, "bfloat16", (1, 2))}])
    payload = [struct.pack("<HH", 0x3F80, 0x4000)]
    [tensor] = embeddings_from(message, payload)
    assert (str(tensor.dtype), tensor.tolist()) == ("torch.bfloat16", [[1.0, 2.0]])
    [plain] = embeddings_from(message, payload, "bytes")
    assert plain.tobytes() == payload[0]
    with pytest.raises(InvalidRequest, match="numpy has no bfloat16"):
        embeddings_from(message, payload, "numpy")


def test_figures_of_another_version_are_ignored_and_missing_ones_are_zero(run_dir: Path, make: Make) -> None:
    figures = {"resends": 3, "of_tomorrow": 1, "store": {"hits": 2, "of_tomorrow": {"a": 1}}}
    with fake_service(run_dir, lambda message: [Stats(1, figures)]), make(run_dir) as client:
        stats = client.stats()
        assert (stats.resends, stats.store.hits, stats.store.puts, stats.engines) == (3, 2, 0, [])


def test_a_figure_of_the_wrong_type_is_a_protocol_error(run_dir: Path, make: Make) -> None:
    answer = Stats(1, {"store": {"hits": "many"}})
    with (
        fake_service(run_dir, lambda message: [answer]),
        make(run_dir) as client,
        pytest.raises(RemoteProtocolError, match=r"store\.hits"),
    ):
        client.stats()


def test_an_answer_of_another_kind_is_a_protocol_error(run_dir: Path, make: Make) -> None:
    def answer(message: FromClient) -> list[ToClient]:
        return [Generated(message.request_id, [], "stop", 1, 0)] if isinstance(message, Encode) else []

    with fake_service(run_dir, answer), make(run_dir) as client, pytest.raises(RemoteProtocolError, match="Encoded"):
        client.encode([b"x"])


def test_a_run_directory_without_a_service_is_named(run_dir: Path) -> None:
    """A service has left it: the folders are there, and nobody listens."""
    with StoreService(run_dir):
        pass
    with pytest.raises(ServiceUnavailable, match=f"no service in {run_dir}; start one: mmcached serve --run-dir"):
        Client(run_dir, fail_open=False, connect_timeout_s=0.05)


def test_a_service_that_listens_and_says_nothing_does_not_answer_in_time(run_dir: Path) -> None:
    with StoreService(run_dir) as service:
        service.hold = (ClientHello,)
        with pytest.raises(ServiceUnavailable, match="does not answer the greeting in time"):
            Client(run_dir, fail_open=False, connect_timeout_s=0.05)


def test_the_log_says_that_a_service_is_there_again(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mmcached.client"), StoreService(run_dir), Client(run_dir) as client:
        assert client.service
        assert not caplog.records
        client._calls.contact.lose()
        assert client.service
        assert client.service
    assert [record.getMessage() for record in caplog.records] == ["the service is there again"]
