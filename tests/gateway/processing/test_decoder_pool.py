"""Real decoders: what kills one costs its picture alone; clients take turns; nothing outlives its end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from mmcached.gateway.processing import decoder_pool
from mmcached.gateway.processing.confined_decoder import DecoderDiedError
from mmcached.gateway.processing.decoder_process import Decoder, Pixels
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import NotWantedError
from mmcached.pictures.messages import MAX_TENSORS, ImageOpened, ImageProcessed, ImageScaled, OutOfMemory, Ready
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.errors import CorruptImage, ImageTooLarge, MmcachedError, ServiceUnavailable
from mmcached.wire.messages.parts import TensorForm
from tests.gateway.decoders import DEADLINE_S, HELD, HELD_PIXELS, SETTINGS, decoders, pids, write_liar
from tests.gateway.in_process import pixels_of
from tests.gateway.pictures import PHOTOGRAPHS, jpeg_of_scans, photograph, plain

GOOD = plain(40, 30)


def test_pixels_are_those_that_the_same_code_makes_here() -> None:
    with decoders(2) as pool:
        for name in PHOTOGRAPHS:
            pool.submit(name, photograph(name))
        for name in PHOTOGRAPHS:
            made = pool.outcome(name)
            assert made == pixels_of(photograph(name), SETTINGS)
            assert isinstance(made, Pixels)
            assert made.seconds > 0


def test_bad_files_cost_no_decoder() -> None:
    with decoders() as pool:
        pool.submit("good", GOOD)
        assert isinstance(pool.outcome("good"), Pixels)
        before = pids()
        for token, data, expected in (
            ("nonsense", b"nonsense", CorruptImage),
            ("scans", jpeg_of_scans(1000), ImageTooLarge),
            ("form", plain(1000, 1), ImageTooLarge),
        ):
            pool.submit(token, data)
            error = pool.outcome(token)
            assert type(error) is expected
            assert isinstance(error, MmcachedError)
            assert error.details["field"] == "image"
        assert pids() == before


def test_without_pictures_there_are_no_processes_and_one_picture_starts_one() -> None:
    with decoders(3) as pool:
        assert pids() == []
        for token in ("a", "b", "c"):
            pool.submit(token, GOOD)
            pool.outcome(token)
        assert len(pids()) == 1


def test_a_decoder_that_is_killed_costs_its_picture_a_second_try_and_nobody_else_anything() -> None:
    with decoders(2) as pool:
        pool.submit_held()
        (victim,) = pids()
        for number in range(8):
            pool.submit(str(number), plain(40, 30 + number), "other")
        os.kill(victim, signal.SIGKILL)
        assert [type(pool.outcome(str(number))) for number in range(8)] == [Pixels] * 8
        assert "held" not in pool.order
        pool.room.release()
        assert pool.outcome("held") == pixels_of(HELD, SETTINGS)
        assert victim not in pids()


@pytest.mark.parametrize(("how", "expected"), [(signal.SIGKILL, ServiceUnavailable), (signal.SIGSEGV, CorruptImage)])
def test_the_second_decoder_that_dies_of_a_picture_is_the_last(
    how: signal.Signals, expected: type[MmcachedError]
) -> None:
    with decoders() as pool:
        pool.submit_held()
        for _ in range(2):
            pool.room.has_come(HELD_PIXELS)
            (victim,) = pids()
            os.kill(victim, how)
            pool.room.hold(HELD_PIXELS)  # and lets this one go
        error = pool.outcome("held")
        assert type(error) is expected
        assert how.name in str(error)
        pool.submit("good", GOOD, "one")
        assert isinstance(pool.outcome("good"), Pixels)


def test_a_stopped_decoder_is_killed_when_nobody_wants_its_picture_any_more() -> None:
    with decoders() as pool:
        pool.submit_held()
        pool.submit("good", GOOD, "two")
        pool.room.has_come(HELD_PIXELS)
        (stopped,) = pids()
        os.kill(stopped, signal.SIGSTOP)
        pool.room.release()
        assert pool.work.withdraw("held") is False
        assert isinstance(pool.outcome("held"), NotWantedError)
        assert isinstance(pool.outcome("good"), Pixels)
        assert stopped not in pids()


def test_cpu_time_of_a_picture_is_limited_by_the_kernel() -> None:
    """Each scan goes over four million pixels again; the codec returns to nobody meanwhile."""
    slow = jpeg_of_scans(20_000, side=2048)
    with decoders(cpu_s=0.2, max_jpeg_scans=1_000_000, max_parts=1_000_000) as pool:
        pool.submit("slow", slow, "one")
        pool.submit("good", GOOD, "two")
        error = pool.outcome("slow")
        assert isinstance(error, ImageTooLarge)
        assert "0.2 s of CPU time" in str(error)
        assert isinstance(pool.outcome("good"), Pixels)


def test_memory_of_a_decoder_is_limited_by_the_kernel() -> None:
    with decoders(memory_bytes=64 << 20) as pool:
        pool.submit("large", plain(5000, 5000), "one")
        error = pool.outcome("large")
        assert isinstance(error, ImageTooLarge)
        assert "67108864 bytes of memory" in str(error)
        pool.submit("good", GOOD, "one")
        assert isinstance(pool.outcome("good"), Pixels)


def test_memory_that_ends_for_an_ordinary_picture_says_nothing_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_pool, "BYTES_PER_PIXEL", 1)
    with decoders(memory_bytes=64 << 20) as pool:
        pool.submit("innocent", plain(5000, 5000), "one")
        error = pool.outcome("innocent")
        assert isinstance(error, ServiceUnavailable)
        assert error.retryable


def test_decoders_that_do_not_start_fail_what_waits_and_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with decoders() as pool:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", "/bin/false")
            pool.submit("first", GOOD, "one")
            pool.submit("second", GOOD, "two")
            for token in ("first", "second"):
                error = pool.outcome(token)
                assert isinstance(error, ServiceUnavailable)
                assert "no decoder can be started" in str(error)
        pool.submit("third", GOOD, "one")
        assert isinstance(pool.outcome("third"), Pixels)


def test_one_client_s_thousand_pictures_do_not_delay_another_s_first() -> None:
    with decoders() as pool:
        pool.room.hold(HELD_PIXELS)
        pool.submit("held", HELD, "many")
        for number in range(1000):
            pool.submit(f"many {number}", b"nonsense", "many")
        pool.room.has_come(HELD_PIXELS)
        pool.submit("fresh", GOOD, "few")
        pool.room.release()
        assert isinstance(pool.outcome("fresh"), Pixels)
        assert pool.order.index("fresh") <= 2, "after what was decoded, and one turn of the other"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_closing_waits_for_no_decoder(is_stopped: bool) -> None:
    with decoders(2) as pool:
        pool.submit_held()
        if is_stopped:
            os.kill(pids()[0], signal.SIGSTOP)
        pool.room.release()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decoder")]


CHILD = """
import signal
from mmcached.gateway.processing.decoder_process import Decoder
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig

decoder = Decoder(PictureSettings.from_config(ServiceConfig()))
decoder.start(lambda: True)
print(decoder.pid, flush=True)
signal.pause()
"""


def test_a_killed_frontend_leaves_no_decoder() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as frontend:
        assert frontend.stdout is not None
        decoder = os.pidfd_open(int(frontend.stdout.readline()))
        try:
            # Stopped, it cannot see that its socket is closed.
            signal.pidfd_send_signal(decoder, signal.SIGSTOP)
            frontend.kill()
            frontend.wait(DEADLINE_S)
            assert_ended(decoder)
        finally:
            os.close(decoder)


def assert_ended(pidfd: int) -> None:
    assert select.select([pidfd], [], [], DEADLINE_S)[0], "it lives on"


@pytest.mark.parametrize(
    "said",
    [
        [ImageOpened(1)],
        [Ready(), ImageScaled(32, 32)],
        [Ready(), ImageOpened(1), ImageScaled(32, 32)],
        [Ready(), Ready()],
        [Ready(), {"type": "ImageOpened", "pixels": -1}],
        [Ready(), ImageOpened(1), ImageOpened(1)],
        [Ready(), ImageOpened(1), ImageScaled(33, 32)],
        [Ready(), ImageOpened(1), ImageScaled(32 * 65, 32)],
        [Ready(), ImageOpened(1), ImageProcessed([TensorForm("a", "uint8", (1,))])],
    ],
    ids=str,
)
def test_a_decoder_that_says_what_may_not_be_said_is_ended(
    said: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_with_liar(said, SETTINGS, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "forms",
    [
        [TensorForm("there is nothing", "float32", (2, 2))],
        [TensorForm("too much", "float32", (1 << 20, 1 << 20))],
        [TensorForm("no size", "float32", (-1,))],
        [TensorForm("no element", "float32", (0, 4))],
        [TensorForm("no dtype", "object", (1,))],
        [TensorForm("none of numpy's", "bfloat16", (1,))],
        [TensorForm(str(number), "uint8", (1,)) for number in range(MAX_TENSORS + 1)],
    ],
    ids=lambda forms: forms[0].name,
)
def test_tensors_that_cannot_be_are_not_read(
    forms: list[TensorForm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = msgspec.structs.replace(SETTINGS, processor_folder="/a/checkpoint")
    decode_with_liar([Ready(), ImageOpened(1), ImageProcessed(forms)], settings, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("pixels", "folder", "expected"),
    [
        (30_000_000, "/a/checkpoint", ImageTooLarge),
        (10_000_000, "/a/checkpoint", ServiceUnavailable),
        (30_000_000, "", ServiceUnavailable),
    ],
)
def test_a_processor_takes_more_memory_for_a_picture_than_a_codec(
    pixels: int, folder: str, expected: type[MmcachedError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_liar([Ready(), ImageOpened(pixels), OutOfMemory()], tmp_path, monkeypatch)
    settings = msgspec.structs.replace(SETTINGS, processor_folder=folder)
    pool = decoder_pool.DecoderPool(1, settings, PixelBudget(1 << 30))
    with pytest.raises(expected):
        pool.decode(GOOD, lambda: True)
    pool.close()


def decode_with_liar(
    said: list[object], settings: PictureSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a picture decoded by a process that says these messages, and see it end."""
    write_liar(said, tmp_path, monkeypatch)
    decoder = Decoder(settings)

    def decode() -> None:
        decoder.start(lambda: True)
        decoder.process(GOOD, is_wanted=lambda: True, before_pixels=lambda pixels: nullcontext())

    with pytest.raises(DecoderDiedError):
        decode()
    assert not decoder.is_alive
    decoder.close()
