"""The demo's film and sound: whole slices, and no trace of them where nothing decodes them."""

from __future__ import annotations

import pytest

from mmcached.cli.demo import clips
from mmcached.cli.demo.photos import Photo
from mmcached.cli.demo.workload import Files, user_with_clips
from mmcached.wire.vocabulary import MODALITIES
from tests.frontend.fake_peers import png

PHOTO = Photo("grey", png(1))


def test_the_film_is_asked_about_twice_then_the_sound() -> None:
    user = user_with_clips(clips.clip_turns(PHOTO, MODALITIES))
    assert [turn.files.modalities for turn in user.turns] == [["video"], ["video"], ["audio"]]
    (page,) = user.pages
    assert [(video.start_s, video.end_s) for video in page.videos] == [(0.0, 4.0), (2.0, 6.0)]
    assert page.videos[0].data == page.videos[1].data
    assert clips.missing_extras(MODALITIES) == []


@pytest.mark.parametrize(("missing", "num_turns"), [(["video"], 1), (["audio"], 2), (["video", "audio"], 0)])
def test_what_nothing_decodes_is_left_out(monkeypatch: pytest.MonkeyPatch, missing: list[str], num_turns: int) -> None:
    monkeypatch.setattr(clips, "decoder_of", lambda modality: "" if modality in missing else "some")
    assert clips.missing_extras(MODALITIES) == missing
    assert len(clips.clip_turns(PHOTO, MODALITIES)) == num_turns


def test_files_of_a_turn_come_behind_those_of_the_turns_before() -> None:
    both = Files([b"a"]) + Files([b"b"], audios=[])
    assert (both.images, both.videos, both.audios) == ([b"a", b"b"], [], [])
