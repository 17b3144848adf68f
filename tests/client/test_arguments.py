"""Wrong arguments of either client: an error that names the field, before anything is sent."""

from __future__ import annotations

import enum
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.client import (
    AsyncClient,
    Audio,
    Client,
    ConfigError,
    EmptyImage,
    InvalidRequest,
    RowsWanted,
    Sampling,
    Video,
    media_files,
)
from mmcached.wire.messages.client import Encoded, Generated, ToClient
from mmcached.wire.messages.frontend import Cancel, ClientHello, Encode, FromClient, Generate
from mmcached.wire.messages.parts import EncoderOutput
from tests.client.blocking import Make
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService, fake_service

NAN, HUGE = float("nan"), 10**5000


def answer(message: FromClient) -> list[ToClient]:
    if isinstance(message, Generate):
        return [Generated(message.request_id, [1], "length", 1, 0)]
    if not isinstance(message, Encode):
        return []
    outputs: list[EncoderOutput] = [{}] * (len(message.image_ids) + len(message.clips))
    return [Encoded(message.request_id, outputs, [[(0.0, 1.0)]] * len(message.clips))]


class Text(str):
    """Text that says something else of itself than it is."""

    def __str__(self) -> str:
        return "other"

    def __len__(self) -> int:
        return 1 << 20


class Word(enum.StrEnum):
    K = "k"


TEXTS: list[Any] = [np.array(["k"])[0], Text("k"), Word.K]


def deep() -> dict[str, Any]:
    """Return a dict of dicts, deeper than Python follows them."""
    found: dict[str, Any] = {}
    for _ in range(5000):
        found = {"x": found}
    return found


class Unlistable:
    """What a quantized tensor does."""

    shape = (3,)

    def tolist(self) -> list[int]:
        raise RuntimeError("load_scalar: invalid type")


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


WRONG_OF_VIDEOS: dict[str, tuple[Any, ...]] = {
    "fps": (0, -1.0, NAN, math.inf, 1001, HUGE, "2", True, 1j),
    "num_frames": (0, -1, 2.0, True, "8", 1 << 17, HUGE),
    "start_s": (-0.1, NAN, math.inf, "0", None, True, HUGE),
    "end_s": (0, -1, NAN, math.inf, "1", True, HUGE),
}

WRONG_OF_SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (-0.1, 101, NAN, math.inf, "1", None, True),
    "top_k": (-1, 1.0, "1", None, True, HUGE),
    "top_p": (0, 1.1, NAN, "1", None),
    "min_p": (-0.1, 1.1, NAN, None),
    "repetition_penalty": (0, -1, NAN, 101, None),
    "seed": (-1, 1.0, "1", True, 1 << 63),
    "num_logprobs": (-2, 21, None, True),
    "stop_token_ids": (5, "12", None, [1] * 65),
    "stop": (5, "end", None, ["x"] * 17),
}

NO_MESSAGES: tuple[Any, ...] = ("Hi", [], {"role": "user"}, 5, [{}] * 4097)
WRONG_MESSAGES: list[tuple[str, Any]] = [
    (".name", {"role": "user", "content": "Hi", "name": "me"}),
    *((".role", {"role": wrong, "content": "Hi"}) for wrong in (None, "", 5, "x" * 65)),
    (".role", {"content": "Hi"}),
    *((".content", {"role": "user", "content": wrong}) for wrong in (None, 5, b"Hi", "\ud800")),
    (".content", {"role": "user"}),
    (".content[1]", {"role": "user", "content": [{"type": "text", "text": "Hi"}, "Hi"]}),
    *((".content[0].type", {"role": "user", "content": [{"type": wrong}]}) for wrong in ("video", None, 5)),
    *((".content[0].text", {"role": "user", "content": [{"type": "text", "text": wrong}]}) for wrong in (None, 5)),
    (".content[0]", {"role": "user", "content": [{"type": "text"}]}),
    (".content[0]", {"role": "user", "content": [{"type": "image"}]}),
    (".content[0]", {"role": "user", "content": [{"type": "image", "image": b"x", "url": "x"}]}),
    (".content[0].image", {"role": "user", "content": [{"type": "image", "image": None}]}),
]

WRONG: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    *(("generate", "max_tokens", ("x", (), wrong), {}) for wrong in (0, -1, "3", True, 2.0, HUGE, None, 1 << 21)),
    *(("generate", "prompt[1]", ([1, wrong],), {}) for wrong in (-1, 1.0, True, "2", HUGE, None, 1 << 31, np.int8(-1))),
    *(("generate", "prompt", (wrong,), {}) for wrong in (5, None, b"bytes", "\ud800", {1}, iter([1]), Unprintable())),
    ("generate", "prompt[0]", (np.array([0.5]),), {}),
    *(("generate", "prompt", (wrong,), {}) for wrong in (Unlistable(), torch.zeros(3, device="meta"), deep())),
    ("generate", "prompt", (np.array([[1]]),), {}),
    *(("generate", "priority", ("x",), {"priority": wrong}) for wrong in (1 << 31, 1.0, "1", True)),
    *(("generate", "hidden_states", ("x",), {"hidden_states": wrong}) for wrong in ("yes", 1, None)),
    *(("generate", "timeout_s", ("x",), {"timeout_s": wrong}) for wrong in ("5", NAN, True, 0, -1, 1e9, HUGE, 1j)),
    ("generate", "rows.keys", ("x",), {"hidden_states": RowsWanted(keys="abc")}),  # type: ignore[arg-type]
    ("generate", "rows.keys", ("x",), {"hidden_states": RowsWanted(keys=[])}),
    ("generate", "rows.keys[0]", ("x",), {"hidden_states": RowsWanted(keys=[7])}),  # type: ignore[list-item]
    ("generate", "rows.first", ("x",), {"hidden_states": RowsWanted(first="1")}),  # type: ignore[arg-type]
    ("generate", "rows.delivery", ("x",), {"hidden_states": RowsWanted(delivery="some")}),  # type: ignore[arg-type]
    ("generate", "rows.delivery", ("x",), {"hidden_states": RowsWanted(delivery=np.zeros(2))}),  # type: ignore[arg-type]
    *(
        ("generate", f"sampling.{name}", ("x",), {"sampling": Sampling(**{name: wrong})})
        for name, wrongs in WRONG_OF_SAMPLING.items()
        for wrong in wrongs
    ),
    ("generate", "sampling.stop_token_ids[1]", ("x",), {"sampling": Sampling(stop_token_ids=[1, -1])}),
    *(
        ("generate", "sampling.stop[1]", ("x",), {"sampling": Sampling(stop=["a", wrong])})  # type: ignore[list-item]
        for wrong in ("", 5, None, b"x", "x" * 257, "\ud800")
    ),
    ("generate", "sampling", ("x",), {"sampling": {"temperature": 1.0}}),
    *(("generate", "n", ("x",), {"n": wrong, "sampling": Sampling()}) for wrong in (0, 65, "2", None, True, 1.0)),
    *(("generate", "n", ("x",), {"n": 2, "sampling": wrong}) for wrong in (None, Sampling(temperature=0.0))),
    *(("generate", "messages", (), {"messages": wrong}) for wrong in NO_MESSAGES),
    ("generate", "messages[0]", (), {"messages": ["Hi"]}),
    *(
        ("generate_stream", f"messages[1]{field}", (), {"messages": [{"role": "user", "content": "Hi"}, message]})
        for field, message in WRONG_MESSAGES
    ),
    ("generate", "prompt", ("x",), {"messages": [{"role": "user", "content": "Hi"}]}),
    *(
        ("generate", name, (), {"messages": [{"role": "user", "content": "Hi"}], name: [b"x"]})
        for name in ("images", "image_ids", "videos", "audios")
    ),
    *(("encode", "images", (wrong,), {}) for wrong in ("cat.png", b"file", Path("cat.png"), None, 5)),
    *(("encode", "images[0]", ([wrong],), {}) for wrong in ("cat.png", 5, np.zeros(3, np.uint8), Unprintable())),
    *(("encode", "image_ids", ([b"x"],), {"image_ids": wrong}) for wrong in ("a", {"a"}, 5, ["a", "b"])),
    *(("encode", "image_ids[0]", ([b"x"],), {"image_ids": [wrong]}) for wrong in (7, b"a", "", "\ud800", "x" * 257)),
    ("encode", "image_ids", ([],), {"image_ids": ["a"]}),
    ("generate", "image_ids", ("<image>", [b"x"]), {"image_ids": ""}),
    ("generate", "image_ids[1]", ("<image>", [b"x", b"y"]), {"image_ids": [None, "é" * 129]}),
    ("generate", "images[0]", ("<image>", [None]), {}),
    ("encode", "images[1]", ([b"x", None],), {"image_ids": ["a", None]}),
    ("encode", "images[0]", ([b"", b"x"],), {"image_ids": ["a", None]}),
    *(("encode", "videos", (), {"videos": wrong}) for wrong in ("a.mp4", b"file", Path("a.mp4"), None, 5, Video(b"x"))),
    *(("encode", "audios", (), {"audios": wrong}) for wrong in (b"file", Audio(b"x"))),
    ("encode", "videos", (), {"videos": [b"x"] * 1000, "audios": [b"x"] * 25}),
    *(("encode", "videos[0]", (), {"videos": [wrong]}) for wrong in ("a.mp4", 5, None, Audio(b"x"), Video("a.mp4"))),  # type: ignore[arg-type]
    *(("encode", "audios[1]", (), {"audios": [b"x", wrong]}) for wrong in ("a.wav", None, Video(b"x"), Audio(None))),
    *(
        ("encode", f"videos[1].{name}", (), {"videos": [b"x", replace(Video(b"x"), **{name: wrong})]})
        for name, wrongs in WRONG_OF_VIDEOS.items()
        for wrong in wrongs
    ),
    ("encode", "videos[0].num_frames", (), {"videos": [Video(b"x", fps=2.0, num_frames=8)]}),
    ("encode", "audios[0].end_s", (), {"audios": [Audio(b"x", start_s=3, end_s=3)]}),
    ("generate", "audios[0].start_s", ("<audio>",), {"audios": [Audio(b"x", start_s=-1)]}),
    ("generate_stream", "videos[0].fps", ("<video>",), {"videos": [Video(b"x", fps=0)]}),
    *(("generate_stream", name, ("x",), {name: wrong}) for name, wrong in (("timeout_s", -1.0), ("priority", "1"))),
    ("generate_stream", "images[0]", ("x", [None]), {}),
    *(("get", "key", (wrong,), {}) for wrong in (5, None, b"k", "x" * 257, "\ud800")),
    ("put", "key", (5, {}), {}),
    ("put", "record", ("k", [1]), {}),
    ("put", "$.x", ("k", {"x": object()}), {}),
    ("put", "$.x[1]", ("k", {"x": [1, {2}]}), {}),
    ("drop", "key", (5,), {}),
    *((verb, "local", ("k",), {"local": 1}) for verb in ("drop", "delete")),
    *(
        ("get", "tensors", ("k",), {"tensors": wrong})
        for wrong in ("jax", np.zeros(2), torch.zeros(2), deep(), [deep()], None, Unprintable(), range(1 << 40))
    ),
    ("get_many", "tensors", (["k"],), {"tensors": np.array(["numpy", "torch"])}),
    ("encode", "tensors", ([b"x"],), {"tensors": {}}),
    ("get", "view", ("k",), {"view": "no"}),
    *(("get_many", "keys", (wrong,), {}) for wrong in ("text", b"text", None, 5, {"k"}, ["k"] * 4097)),
    ("get_many", "keys[1]", (["k", 5],), {}),
    ("contains_many", "keys", ("text",), {}),
    *(("prefetch", "keys", (wrong,), {}) for wrong in ("text", None, ["k"] * 4097)),
    ("prefetch", "keys[1]", (["k", "x" * 257],), {}),
    ("prefetch", "tenant", (["k"],), {"tenant": 5}),
    *(("pin", "keys", (wrong,), {"ttl_s": 1}) for wrong in ("text", None, ["k"] * 4097)),
    ("pin", "keys[1]", (["k", "x" * 257],), {"ttl_s": 1}),
    *(("pin", "ttl_s", (["k"],), {"ttl_s": wrong}) for wrong in (None, "1", True, 0, -1, NAN, 86_401)),
    ("pin", "tenant", (["k"],), {"ttl_s": 1, "tenant": 5}),
    *(("unpin", "keys", (wrong,), {}) for wrong in ("text", None, ["k"] * 4097)),
    ("unpin", "tenant", (["k"],), {"tenant": 5}),
    ("get_or_compute", "fn", ("k", {"x": 1}), {}),
    ("get", "timeout_s", ("k",), {"timeout_s": 0}),
    *((verb, "timeout_s", (), {"timeout_s": wrong}) for verb in ("stats", "probe", "flush") for wrong in ("1", NAN, 0)),
    ("invalidate", "timeout_s", (), {"timeout_s": 0}),
]


def test_wrong_arguments_are_refused_before_anything_is_sent(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, answer) as received, make(run_dir) as client:
        for verb, field, values, named in WRONG:
            with pytest.raises(InvalidRequest) as caught:
                getattr(client, verb)(*values, **named)
            assert caught.value.details["field"] == field, (verb, values, named)
            assert caught.value.details["limit"]
            assert len(str(caught.value)) < 400
        assert not [message for message in received if not isinstance(message, ClientHello | Cancel)]
        assert client.store_counters().failures == 0


@pytest.mark.parametrize(
    ("field", "named"),
    [
        *(("timeout_s", {"timeout_s": wrong}) for wrong in (NAN, 0, "5", True, None)),
        *(("connect_timeout_s", {"connect_timeout_s": wrong}) for wrong in (NAN, -1)),
        *(("tenant", {"tenant": wrong}) for wrong in (5, None, b"a", "x" * 300, "\ud800")),
        ("fail_open", {"fail_open": "no"}),
        *(("name", {"name": wrong}) for wrong in ("", "vLLM", "-a", "a b", "a\n", "é", "x" * 33, 5, None, b"a")),
        *(("run_dir", {"run_dir": wrong}) for wrong in (5, b"/tmp", "/tmp/" + "x" * 200)),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_is_not_made_of_wrong_arguments(kind: Any, field: str, named: dict[str, Any], run_dir: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        kind(**({"run_dir": run_dir} | named))
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_user_without_a_default_run_directory_is_told_where_it_would_be(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MMC_RUN_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(ConfigError) as caught:
        kind()
    default = "run_dir = '/run/user/12345/mmcached': "
    assert str(caught.value).startswith(default)
    assert "MMC_RUN_DIR" in str(caught.value).removeprefix(default)
    with pytest.raises(ConfigError) as caught:
        kind("/tmp/" + "x" * 200)
    assert str(caught.value).count("run_dir = ") == 1


@pytest.mark.parametrize(
    ("key", "shown"),
    [(5, "key = 5: a key"), (True, "key = True: "), (b"k", "key = \"b'k'\": "), ("k" * 300, f"key = '{'k' * 80}': ")],
)
def test_a_wrong_value_is_shown_as_a_program_has_it(key: Any, shown: str, run_dir: Path) -> None:
    with Client(run_dir) as client, pytest.raises(InvalidRequest) as caught:
        client.get(key)
    assert str(caught.value).startswith(shown)


@pytest.mark.parametrize("name", ["vllm", "0.a_b-c", "x" * 32])
def test_a_client_says_its_name_when_it_greets(run_dir: Path, make: Make, name: str) -> None:
    with fake_service(run_dir, answer) as received:
        for named in ({"name": name}, {}):
            with make(run_dir, **named) as client:
                client.encode([])
    assert {hello.name for hello in received if isinstance(hello, ClientHello)} == {name, "client"}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: type(text).__name__)
@pytest.mark.parametrize("fail_open", [True, False])
def test_text_of_any_subclass_is_its_characters(run_dir: Path, make: Make, text: Any, fail_open: bool) -> None:
    """As key, tenant, name and prompt, by each call alike; also where nothing may fail."""
    with (
        StoreService(run_dir) as service,
        make(run_dir, tenant=text, name=text, fail_open=fail_open) as client,
        make(run_dir, tenant="k") as other,
    ):
        assert client.put(text, numbers(1))
        assert [is_equal(client.get(key, tensors=np.str_("numpy")).record, numbers(1)) for key in (text, "k")] == [
            True
        ] * 2
        assert client.get_or_compute(text, dict, tensors="numpy")["seed"] == 1
        assert client.get_or_compute(text, lambda: numbers(2), tenant=text)["seed"] == 1
        assert [hit.record["seed"] for hit in client.get_many([text, "k"])] == [1, 1]
        assert client.contains_many([text]) == other.contains_many(["k"], tenant=text) == [True]
        assert client.get_many([text], tenant="t") == [None]
        assert client.get_many([text], tenant=text)[0].record["seed"] == 1
        assert client.claim_many([text])[0].record["seed"] == 1
        (claim,) = client.claim_many([text + "2"])
        assert client.put(text + "2", numbers(3), claim=claim)
        assert other.open(Text(client.get(text, view=True).token)) is not None
        assert client.drop(text)
        assert client.store_counters().failures == 0
    said = [message for message in service.received if isinstance(message, ClientHello)]
    assert "k" in {message.name for message in said}


def test_numbers_of_numpy_and_any_bytes_are_taken(run_dir: Path, make: Make, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"file")
    with fake_service(run_dir, answer) as received, make(run_dir) as client:
        client.generate(Text("text"))
        for prompt in ([np.int64(1), 2], np.array([1, 2], np.uint16), (1, 2), range(1, 3)):
            client.generate(prompt, max_tokens=np.int32(3), priority=np.int8(-1), timeout_s=np.float32(9))
        files = [bytearray(b"file"), memoryview(b"file"), b"file", tmp_path / "cat.png"]
        client.encode(files, image_ids=[None] * 4)
        asked = [message for message in received if isinstance(message, Generate)]
    assert asked[0].prompt == "text"
    assert [(message.prompt, message.max_tokens, message.priority) for message in asked[1:]] == [([1, 2], 3, -1)] * 4


def test_image_ids_travel_with_the_request(run_dir: Path, make: Make) -> None:
    longest = "é" * 128
    with fake_service(run_dir, answer) as received, make(run_dir) as client:
        client.generate("<image><image>", [b"file", None], image_ids=[None, longest])
        client.encode([b"file"], image_ids=["a"])
        client.generate("<image>", [b"file"])
        asked = [message for message in received if isinstance(message, Generate | Encode)]
    assert [message.image_ids for message in asked] == [[None, longest], ["a"], []]


def test_an_empty_file_never_passes_for_an_id_alone(tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    empty.touch()
    assert media_files.read_images([None, empty], ["a", None]) == [b"", b""]
    with pytest.raises(EmptyImage, match=r"images\[1\]"):
        media_files.read_images([None, empty], ["a", "b"])


@pytest.fixture
def odd_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", media_files.MAX_FILE_BYTES + 1)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes
        listener.bind("socket")
        names = {name: tmp_path / name for name in ("fifo", "large", "socket", "missing")}
        yield names | {"device": Path("/dev/zero"), "folder": tmp_path, "null": Path("\0")}


def test_only_regular_files_of_a_possible_size_are_read(run_dir: Path, make: Make, odd_files: dict[str, Path]) -> None:
    with fake_service(run_dir, answer) as received, make(run_dir) as client:
        for path in odd_files.values():
            with pytest.raises(InvalidRequest, match=r"images\[1\]"):
                client.encode([b"data", path])
            with pytest.raises(InvalidRequest, match=r"audios\[0\]"):
                client.generate("<audio>", audios=[Audio(path)])
        assert not [message for message in received if isinstance(message, Encode)]
