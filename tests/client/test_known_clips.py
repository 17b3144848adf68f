"""A client finds a clip by itself: which slices it has, and what the encoder has said of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from mmcached.cache.clip_keys import clip_key, clip_record, file_key
from mmcached.cache.hasher import MultiModalHasher
from mmcached.cache.store_keys import output_key
from mmcached.client import Audio, Client, Clip, Video
from mmcached.client.known_outputs import clip_records, contents_of
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.client import Welcome
from mmcached.wire.messages.frontend import Encode, GetRecords
from mmcached.wire.messages.parts import ClipOptions
from tests.client.services import FINGERPRINTS, StoreService, slices_of

FILM, SONG = bytes(range(32)), b"a song of 16 byt"
WHOLE = ClipOptions("video", fps=2.0)
HASHER = MultiModalHasher()


def record_key(file: bytes, options: ClipOptions, tenant: str = "") -> str:
    """Return where the store has the slices of a clip."""
    content = HASHER.content_digest(file)
    key = file_key(HASHER, content, options, fingerprint=FINGERPRINTS[options.modality], tenant=tenant)
    return clip_record(clip_key(HASHER, key, options))


def slice_key(content: bytes) -> str:
    """Return the key of a slice's item."""
    return HASHER.hash_kwargs(content=content)


def listed(contents: Sequence[bytes]) -> list[list[Any]]:
    """Return what the record of a clip with these slices says."""
    return [[slice_key(each), len(each) // 4, index, index + 1.0] for index, each in enumerate(contents)]


def output_of(content: bytes) -> torch.Tensor:
    """Return the encoder's output for a slice: another one than the service says when it is asked."""
    return torch.from_numpy(-np.frombuffer(content, np.int8).astype(np.int32))


def put(
    run_dir: Path, file: bytes, options: ClipOptions = WHOLE, *, tenant: str = "", lacking: Sequence[bytes] = ()
) -> None:
    """Put a clip and the outputs of its slices, as the service and its workers do."""
    contents = slices_of(file)
    with Client(run_dir, tenant=tenant) as worker:
        assert worker.put(record_key(file, options, tenant), {"slices": listed(contents)})
        for content in contents:
            if content not in lacking:
                assert worker.put(output_key("f", slice_key(content)), {"embeddings": output_of(content)})


def assert_found(clip: Any, contents: Sequence[bytes]) -> None:
    """Check that a clip is the stored one."""
    assert isinstance(clip, Clip)
    assert clip.times == [(index, index + 1.0) for index in range(len(contents))]
    for output, content in zip(clip.outputs, contents, strict=True):
        assert torch.equal(output, output_of(content))


@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
@pytest.mark.parametrize("options", [WHOLE, ClipOptions("video", 1.0, 2.5, None, 8), ClipOptions("audio", 3.0)])
def test_names_are_those_of_the_service(algorithm: Literal["blake3", "sha256"], options: ClipOptions) -> None:
    processing = Processing(ServiceConfig(mm_hasher_algorithm=algorithm))
    said = Welcome(
        *("fake", 258, 257, 64, 8192),
        encoder_fingerprint="f",
        item_fingerprints=dict(processing.fingerprints),
        hasher_algorithm=algorithm,
    )
    medium = Medium(options.modality, FILM, "videos[0]", options=options)
    assert clip_records(said, [options], contents_of(said, [FILM]), "tenant") == {
        0: clip_record(processing.keys(medium, "tenant")[1])
    }


@pytest.mark.parametrize("view", [False, True])
def test_a_known_clip_is_found_without_asking(known: StoreService, client: Any, run_dir: Path, view: bool) -> None:
    put(run_dir, FILM)
    put(run_dir, SONG, ClipOptions("audio", 0.5, 7.0))
    found = client.encode(videos=[FILM], audios=[Audio(SONG, 0.5, 7)], view=view)
    assert_found(found[0], slices_of(FILM))
    assert_found(found[1], slices_of(SONG))
    assert torch.equal(found[0].joined(), torch.cat([output_of(each) for each in slices_of(FILM)]))
    assert known.leases == (6 if view else 0)
    assert not known.count(Encode)
    assert not known.count(GetRecords)
    found.clear()
    client.get("whatever")
    assert known.leases == 0


def test_other_options_another_tenant_and_another_modality_are_asked_for(
    known: StoreService, client: Any, run_dir: Path
) -> None:
    put(run_dir, FILM)
    put(run_dir, SONG, ClipOptions("audio"), tenant="another")
    others = [Video(FILM, fps=1), Video(FILM, num_frames=2), Video(FILM, start_s=1), Video(FILM, end_s=9)]
    new = client.encode(videos=[*others, FILM], audios=[FILM, SONG])
    assert [clip.outputs[0].numpy().tobytes() for clip in (*new[:4], *new[5:])] == [FILM[:8]] * 5 + [SONG[:8]]
    assert_found(new[4], slices_of(FILM))
    (message,) = known.encodes()
    assert [options.modality for options in message.clips] == ["video"] * 4 + ["audio"] * 2


def test_a_clip_that_lacks_an_output_is_asked_for_as_a_whole(known: StoreService, client: Any, run_dir: Path) -> None:
    put(run_dir, FILM, lacking=[FILM[8:16]])
    put(run_dir, SONG, ClipOptions("audio"))
    before = known.desk.stats().hits
    image, film, song = client.encode([b"an image"], videos=[FILM], audios=[SONG])
    assert image.numpy().tobytes() == b"an image"
    assert film.joined().numpy().tobytes() == FILM
    assert_found(song, slices_of(SONG))
    (message,) = known.encodes()
    assert message.clips == [WHOLE]
    hits: list[int] = []
    known.call(lambda: hits.append(known.desk.stats().hits - before))
    assert hits == [2 + 2], "what is there of a clip that lacks something is not read"


GOOD = listed(slices_of(FILM))


WRONG: list[dict[str, Any]] = [
    {},
    {"slices": []},
    {"slices": GOOD[0]},
    {"slices": torch.zeros(3)},
    {"slices": [torch.zeros(4)]},
    {"slices": {"0": GOOD[0]}},
    {"slices": "slices"},
    {"slices": [*GOOD, GOOD[0][:3]]},
    {"slices": [*GOOD, [*GOOD[0], 1]]},
    *({"slices": [[wrong, *GOOD[0][1:]]]} for wrong in ("a" * 63, "A" * 64, "a" * 64 + "\n", "../" * 21 + "a", 5)),
    *({"slices": [[GOOD[0][0], wrong, 0.0, 1.0]]} for wrong in (0, -1, 1.5, "1", None, True)),
    *({"slices": [[GOOD[0][0], 1, 0.0, wrong]]} for wrong in (-1.0, float("nan"), float("inf"), 1e10, "1", None)),
]


def test_a_record_that_is_none_counts_as_missing(known: StoreService, client: Any, run_dir: Path) -> None:
    with Client(run_dir) as other:
        for content in slices_of(FILM):
            assert other.put(output_key("f", slice_key(content)), {"embeddings": output_of(content)})
        for number, record in enumerate(WRONG):
            assert other.put(record_key(FILM + bytes([number] * 8), WHOLE), record)
    for number, record in enumerate(WRONG):
        file = FILM + bytes([number] * 8)
        assert client.encode(videos=[file])[0].joined().numpy().tobytes() == file, record
    assert known.leases == 0


def test_a_clip_may_have_more_slices_than_a_message_has_keys(known: StoreService, client: Any, run_dir: Path) -> None:
    long = np.arange(2 * 384, dtype=np.int32).tobytes()
    put(run_dir, long)
    assert_found(client.encode(videos=[long])[0], slices_of(long))
    known.keys = {each: output_key("f", slice_key(each)) for each in slices_of(long)}
    (made,) = client.encode(audios=[long])
    assert all(torch.equal(output, output_of(each)) for output, each in zip(made.outputs, slices_of(long), strict=True))
    assert known.count(Encode) == 1


@pytest.mark.parametrize("view", [False, True])
def test_outputs_come_through_the_store_and_inline(known: StoreService, client: Any, run_dir: Path, view: bool) -> None:
    put(run_dir, FILM)
    known.keys = {FILM[8:16]: output_key("f", slice_key(FILM[8:16]))}
    made = client.encode([b"an image"], audios=[FILM], view=view)
    first, second, *_ = made[1].outputs
    assert first.numpy().tobytes() == FILM[:8]
    assert torch.equal(second, output_of(FILM[8:16]))
    assert known.leases == int(view)
    assert known.count(Encode) == 1
    del first, second
    made.clear()


def test_a_clip_of_which_an_output_is_named_and_gone_is_asked_for_once_more(known: StoreService, client: Any) -> None:
    known.keys = {FILM[8:16]: "nothing is there"}
    image, song, film = client.encode([b"an image"], videos=[SONG], audios=[FILM])
    assert image.numpy().tobytes() == b"an image"
    assert [song.joined().numpy().tobytes(), film.joined().numpy().tobytes()] == [SONG, FILM]
    first, second = known.encodes()
    assert [len(first.clips), second.clips] == [2, [ClipOptions("audio")]]
    assert [first.takes_keys, second.takes_keys] == [True, False]


def test_a_file_is_hashed_once(known: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    of_content = MultiModalHasher.content_digest

    def counting(hasher: MultiModalHasher, data: bytes) -> str:
        hashed.append(data)
        return of_content(hasher, data)

    monkeypatch.setattr(MultiModalHasher, "content_digest", counting)
    client.encode(videos=[FILM, Video(FILM, fps=1), Video(FILM, start_s=1), SONG], audios=[FILM])
    assert hashed == [FILM, SONG]


def test_what_was_found_is_let_go_of_when_the_rest_does_not_come(
    known: StoreService, client: Any, run_dir: Path
) -> None:
    put(run_dir, FILM)
    known.hold = (Encode,)
    with pytest.raises(DeadlineExceeded) as caught:
        client.encode(videos=[FILM, SONG], view=True, timeout_s=0.1)
    client.get("whatever")
    assert known.leases == 0
    assert caught.value.retryable
    known.release()


def test_a_clip_that_the_service_does_not_take_has_no_name() -> None:
    said = Welcome(
        *("fake", 258, 257, 64, 8192), encoder_fingerprint="f", item_fingerprints={"video": "v", "audio": ""}
    )
    clips = [ClipOptions("audio"), WHOLE]
    assert list(clip_records(said, clips, ["0" * 64] * 2, "")) == [1]
    assert clip_records(replace(said, encoder_fingerprint="", item_fingerprints={}), clips, ["0" * 64] * 2, "") == {}
    assert clip_records(replace(said, encoder_fingerprint=""), clips, ["0" * 64] * 2, "") == {}
