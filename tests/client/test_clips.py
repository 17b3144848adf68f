"""Videos and sounds of either client: what travels, and what is made of the answers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.client import Audio, Clip, InvalidRequest, RemoteProtocolError, Video
from mmcached.client.clips import checked_clips, read_clips
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.client import Encoded, ToClient
from mmcached.wire.messages.frontend import Cancel, ClientHello, Encode, FromClient, Generate
from mmcached.wire.messages.parts import ClipOptions, EncoderOutput
from tests.client.blocking import Make
from tests.client.services import StoreService, fake_service, silent, slices_of

FILM, SONG = bytes(range(24)), b"a song of 24 bytes ...."  # 3 slices each


def bytes_of(output: torch.Tensor) -> bytes:
    return output.numpy().tobytes()


def test_each_clip_has_the_outputs_of_its_slices(service: StoreService, client: Any, tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(FILM)
    image, film, again, song = client.encode(
        [b"12345678"], videos=[tmp_path / "film.mp4", Video(bytearray(FILM), fps=1)], audios=[memoryview(SONG[:16])]
    )
    assert bytes_of(image) == b"12345678"
    assert [isinstance(each, Clip) for each in (film, again, song)] == [True] * 3
    assert [[bytes_of(output) for output in clip.outputs] for clip in (film, again)] == [slices_of(FILM)] * 2
    assert [len(film), len(song)] == [3, 2]
    assert film.times == [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)]
    assert bytes_of(film.joined()) == FILM
    (asked,) = [message for message in service.received if isinstance(message, Encode)]
    assert [options.modality for options in asked.clips] == ["video", "video", "audio"]


@pytest.mark.parametrize("library", ["numpy", "torch", "bytes"])
def test_joined_outputs_are_of_the_wanted_library_and_owned(client: Any, library: str) -> None:
    (film,) = client.encode(videos=[FILM], tensors=library)
    joined = film.joined()
    assert isinstance(joined, torch.Tensor if library == "torch" else np.ndarray)
    joined += 1
    assert bytes(np.asarray(film.joined())) == FILM
    (short,) = client.encode(audios=[b"8 bytes."], tensors=library)
    assert short.joined() is not short.outputs[0]


def test_no_film_is_spelled_out() -> None:
    film = bytes(1 << 20)
    tracemalloc.start()
    try:
        for wrong in (film, Video(film)):
            with pytest.raises(InvalidRequest, match="videos"):
                checked_clips(wrong, [])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"videos\[0\]"):
            read_clips([Audio(film)], [])  # type: ignore[list-item]
        assert len(repr(Video(film))) < 100
        assert tracemalloc.get_traced_memory()[1] < len(film) / 4
    finally:
        tracemalloc.stop()


def test_several_outputs_are_not_joined() -> None:
    with pytest.raises(InvalidRequest, match="rows, pooled"):
        Clip([{"rows": 1, "pooled": 2}], [(0.0, 1.0)]).joined()


def test_options_travel_with_their_defaults(run_dir: Path, make: Make) -> None:
    eight: Any = np.int32(8)
    videos = [b"x", Video(b"x"), Video(b"x", num_frames=eight), Video(b"x", 0.5, None, -0.0, 7)]
    audios = [b"y", Audio(b"y", 3, 4.5)]
    expected = [
        *[ClipOptions("video", 0.0, None, 2.0, None)] * 2,
        ClipOptions("video", 0.0, None, None, 8),
        ClipOptions("video", 0.0, 7.0, 0.5, None),
        ClipOptions("audio", 0.0, None, None, None),
        ClipOptions("audio", 3.0, 4.5, None, None),
    ]
    with fake_service(run_dir, silent) as received, make(run_dir) as client:
        prompt = "<video>" * 4 + "<audio>" * 2
        for ask in (
            lambda: client.encode(videos=videos, audios=audios, timeout_s=0.05),
            lambda: client.generate(prompt, videos=videos, audios=audios, timeout_s=0.05),
            lambda: list(client.generate_stream(prompt, videos=videos, audios=audios, timeout_s=0.05)),
        ):
            with pytest.raises(DeadlineExceeded):
                ask()
        asked = [message for message in received if isinstance(message, Encode | Generate)]
    assert [message.clips for message in asked] == [expected] * 3
    assert {str(options.start_s) for message in asked for options in message.clips} == {"0.0", "3.0"}


def test_only_images_are_asked_for_as_ever(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, said([{}], [])) as received, make(run_dir) as client:
        assert client.encode([b"x"]) == [{}]
    (asked,) = [message for message in received if isinstance(message, Encode)]
    assert (asked.clips, asked.image_ids) == ([], [])


def said(outputs: list[EncoderOutput], clips: list[Any]) -> Any:
    """Return what answers each request for embeddings with these words."""

    def reply(message: FromClient) -> Iterable[ToClient]:
        return [Encoded(message.request_id, outputs, clips)] if isinstance(message, Encode) else []

    return reply


TIME = (0.0, 0.5)


@pytest.mark.parametrize(
    ("outputs", "clips", "field"),
    [
        ([{}] * 2, [], "clips"),
        ([{}] * 3, [[TIME], [TIME]], "clips"),
        ([{}], [[]], "clips"),
        ([{}] * 2, [[TIME] * 2], "outputs"),
        ([{}] * 4, [[TIME] * 2], "outputs"),
        ([{}, {}, "a key"], [[TIME] * 2], "outputs"),
    ],
)
def test_an_answer_of_another_shape_is_none(
    run_dir: Path, make: Make, outputs: list[EncoderOutput], clips: list[Any], field: str
) -> None:
    with fake_service(run_dir, said(outputs, clips)), make(run_dir) as client:
        with pytest.raises(RemoteProtocolError) as caught:
            client.encode([b"image"], videos=[FILM])
        assert caught.value.details["field"] == field


@pytest.mark.parametrize("time", [(-1.0, 0.0), (0.0, float("nan")), (0.0, float("inf")), (0.0,)])
def test_times_that_cannot_be_are_none(run_dir: Path, make: Make, time: Any) -> None:
    with fake_service(run_dir, said([{}], [[time]])), make(run_dir) as client, pytest.raises(RemoteProtocolError):
        client.encode(videos=[FILM])


def test_a_deadline_ends_the_request_in_the_service(service: StoreService, client: Any) -> None:
    service.hold = (Encode,)
    with pytest.raises(DeadlineExceeded):
        client.encode(videos=[FILM], timeout_s=0.05)
    client.probe()
    asked = [message for message in service.received if isinstance(message, Encode)]
    assert [message.request_id for message in service.received if isinstance(message, Cancel)] == [asked[0].request_id]
    assert not isinstance(service.received[-1], ClientHello)
    service.release()
