"""Measures what a film or a sound costs that came before, whole or in part, and what it costs to keep what never comes
again.

known     a film of 32 frames, and a sound of 30 s, that the store has: beside a service without caches, which decodes,
          processes and encodes
tower     the same sound by a tower of Whisper, spectrogram included, weights at random; where Transformers is installed
longer    one more second: of the same file, and of another one that goes on where the first ends
overlap   two windows of a film that share a half, beside caching each as a whole
hash      naming a film, beside the hash of its bytes alone
one use   every film, or sound, is new: beside a service without caches, in pairs; encoders as slow as in `encode`

A whole that nobody has had is asked for by another tenant. Frames decoded are those that a decoder has handed on.
Services of real processes, the reference encoder on CPUs, which is cheap: with a real one a hit saves more.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from blake3 import blake3

from mmcached.cache.clip_keys import clip_key, file_key
from mmcached.cache.hasher import MultiModalHasher
from mmcached.client import Audio, Client, Clip, Video
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from scripts.bench import harness
from scripts.bench.encode import MODEL as SLOWER
from scripts.bench.encode import cpu_ms, service
from scripts.bench.harness import Bound, Call, Made, Row, calls_row, compare, row
from scripts.bench.media_files import film, save_whisper, sound

SIZE = (1280, 720)
FPS = 2.0
WINDOW_S = 16.0
SHARED_S = WINDOW_S / 2
SOUND_S = 30.0
NEW_SIZE, NEW_S, NUM_NEW, PAIRS_PER_ROUND = (640, 480), 4.0, 2, 8
ROUNDS, QUICK_ROUNDS = 5, 2

FILM = "film of 16 s, 720p, 32 frames"
SOUND = "sound of 30 s, two channels, 44.1 kHz"
SPEECH = "the same sound, a tower as large as whisper-tiny's"
LONGER = "one more second of the film"
GROWN = "the film in another file, one second longer"
OVERLAP = "a window that shares a half with a known one"
NEW = "every {} is new"
WORK = "decode, process, encode"
WHOLE = "the whole"
OFF = "no caches"
DIGEST = "blake3 of its bytes"
SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "10 MiB": 10 << 20}
CALLS = {"64 KiB": 200, "1 MiB": 20, "10 MiB": 3}
BOUNDS = [
    *(Bound("reach", f"known again, {how}", FILM, WORK, 0.01) for how in ("owned", "in place")),
    *(
        Bound("reach", f"known again, {how}", what, WORK, 0.02)
        for what in (SOUND, SPEECH)
        for how in ("owned", "in place")
    ),
    *(Bound("reach", what, LONGER, WHOLE, 0.15) for what in ("frames decoded", "slices encoded")),
    *(Bound("try", what, LONGER, WHOLE, 0.15) for what in ("time", "CPU time")),
    Bound("reach", "slices encoded", GROWN, WHOLE, 0.15),
    *(Bound("reach", what, OVERLAP, WHOLE, 0.55) for what in ("frames decoded", "slices encoded")),
    *(Bound("reach", "named", f"film of {size}", DIGEST, 1.1) for size in SIZES),
    *(Bound("reach", "time of an answer", NEW.format(what), OFF, 1.05) for what in ("film", "sound")),
]
NO_CACHES: dict[str, object] = {
    "mm_processor_cache_gb": 0.0,
    "encoder_cache_scope": "request",
    "enable_prefix_caching": False,
    "enable_tensor_prefix_cache": False,
    "store_gb": 0,
}
HOW = ("owned", "in place")
HITS = 20  # of which the CPU time is taken together
Asked = Video | Audio
Side = tuple[Path, Client]
_numbers = count()


class Work(NamedTuple):
    """What a service has done so far: slices that were decoded, and slices that were encoded."""

    decoded: int
    encoded: int

    @classmethod
    def of(cls, run_dir: Path) -> Work:
        """Return it when all is at rest."""
        with Client(run_dir) as client:
            before = None
            while True:
                stats = client.stats()
                encoded = sum(worker.items_encoded for engine in stats.engines for worker in engine.workers)
                now = cls(stats.processor.items_processed, encoded)
                if now == before and not stats.requests_open:
                    return now
                before = now
                time.sleep(1.5)  # figures are published four times a second


@cache
def known_film(seconds: float) -> bytes:
    return film(seconds, SIZE, seed=0)


def window(start_s: float, end_s: float, *, of_s: float = WINDOW_S + SHARED_S) -> Video:
    """Return a part of the film, from its file of `of_s` seconds."""
    return Video(known_film(of_s), start_s=start_s, end_s=end_s, fps=FPS)


def encode(client: Client, clip: Asked, *, view: bool = False) -> Clip:
    videos, audios = ([clip], []) if isinstance(clip, Video) else ([], [clip])
    (output,) = client.encode(videos=videos, audios=audios, view=view)
    return output  # type: ignore[no-any-return]  # of an image it is something else


def timed(run: Call) -> float:
    """Return the milliseconds of a call."""
    began = time.perf_counter()
    result = run()
    taken = time.perf_counter() - began
    del result
    return taken * 1e3


@contextlib.contextmanager
def services(**settings: object) -> Iterator[tuple[Side, Side]]:
    """Run a service as it comes, and one without caches and store; yield the folder and a client of each."""
    settings = {"model": ModelConfig(), **settings}
    with service(**settings) as on, service(**settings, **NO_CACHES) as off, Client(on) as ours, Client(off) as theirs:
        yield (on, ours), (off, theirs)


def known(num_rounds: int) -> Iterator[Row]:
    with services() as (ours, theirs):
        data = known_film(WINDOW_S)
        yield from _known(_again(ours, theirs, Video(data, fps=FPS), data, num_rounds), FILM)
        data = sound(SOUND_S, seed=0)
        yield from _known(_again(ours, theirs, Audio(data), data, num_rounds), SOUND)


def tower(num_rounds: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder:
        save_whisper(Path(folder))
        encoder = EncoderConfig(kind="hf", path=folder)
        with services(encoder=encoder) as (ours, theirs):
            data = sound(SOUND_S, seed=0)
            yield from _known(_again(ours, theirs, Audio(data), data, num_rounds), SPEECH)


def _known(taken: Mapping[str, float], params: str) -> Iterator[Row]:
    for how in HOW:
        for peer in (WORK, DIGEST):
            yield row(f"known again, {how}", params, taken[how], "ms", peer=peer, peer_value=taken[peer])
        name = f"known again, {how}, CPU time"
        yield row(name, params, taken[f"{how}, CPU"], "ms", peer=WORK, peer_value=taken[f"{WORK}, CPU"])


def _again(mine: Side, other: Side, clip: Asked, data: bytes, num_rounds: int) -> dict[str, float]:
    """Return the milliseconds of a known clip, of the same without caches, and of hashing its file; and of CPU time."""
    (on, ours), (off, theirs) = mine, other
    if not torch.equal(encode(ours, clip).joined(), encode(theirs, clip).joined()):
        raise AssertionError("the services differ")
    calls: dict[str, tuple[Path, Call, int]] = {
        "owned": (on, partial(encode, ours, clip), HITS),
        "in place": (on, partial(encode, ours, clip, view=True), HITS),
        WORK: (off, partial(encode, theirs, clip), 1),
    }
    samplers = {name: partial(timed, call) for name, (_, call, _) in calls.items()}
    samplers[DIGEST] = partial(timed, partial(_digest, data))
    cpu = {f"{name}, CPU": partial(_cpu_of, *each) for name, each in calls.items()}
    return {**compare(samplers, num_rounds), **compare(cpu, num_rounds)}


def _cpu_of(run_dir: Path, call: Call, num_calls: int = 1) -> float:
    """Return the CPU milliseconds of all processes of a service, and of this one, for a call and what comes behind."""
    before = cpu_ms(run_dir)
    for _ in range(num_calls):
        call()
    time.sleep(0.05)
    return (cpu_ms(run_dir) - before) / num_calls


def longer(num_rounds: int) -> Iterator[Row]:
    first, whole = (window(0, end_s) for end_s in (WINDOW_S, WINDOW_S + 1))
    yield from _after(first, whole, LONGER, num_rounds)
    short, long = (window(0, end_s, of_s=end_s) for end_s in (WINDOW_S, WINDOW_S + 1))
    yield from _after(short, long, GROWN, num_rounds)


def overlap(num_rounds: int) -> Iterator[Row]:
    first, second = window(0, WINDOW_S), window(SHARED_S, SHARED_S + WINDOW_S)
    yield from _after(first, second, OVERLAP, num_rounds)


def _after(first: Asked, then: Asked, params: str, num_rounds: int) -> Iterator[Row]:
    """Ask for a clip after another one, and, as somebody who has asked for nothing, for it alone."""
    with service(model=ModelConfig()) as run_dir:
        ask = partial(_asked, run_dir, first, then)
        work = {alone: ask(alone, _work_of) for alone in (False, True)}
        wall, cpu = (
            compare({alone: partial(ask, alone, measure) for alone in work}, num_rounds)
            for measure in (lambda _, call: timed(call), _cpu_of)
        )
    frames, slices = ({alone: each[index] for alone, each in work.items()} for index in (0, 1))
    yield row("frames decoded", params, 2 * frames[False], "frames", peer=WHOLE, peer_value=2 * frames[True])
    yield row("slices encoded", params, slices[False], "slices", peer=WHOLE, peer_value=slices[True])
    yield row("time", params, wall[False], "ms", peer=WHOLE, peer_value=wall[True])
    yield row("CPU time", params, cpu[False], "ms", peer=WHOLE, peer_value=cpu[True])


def _asked(run_dir: Path, first: Asked, then: Asked, alone: bool, measure: Callable[[Path, Call], Made]) -> Made:
    """Measure a call for `then` by a tenant of its own, who has asked for `first` unless it is `alone`."""
    with Client(run_dir, tenant=str(next(_numbers))) as client:
        if not alone:
            encode(client, first)
        return measure(run_dir, partial(encode, client, then))


def _work_of(run_dir: Path, call: Call) -> Work:
    before = Work.of(run_dir)
    call()
    after = Work.of(run_dir)
    return Work(after.decoded - before.decoded, after.encoded - before.encoded)


def hashes(num_rounds: int) -> Iterator[Row]:
    hasher, options = MultiModalHasher(), ClipOptions("video", 0.0, WINDOW_S, FPS)
    whole = known_film(WINDOW_S)
    for size, nbytes in SIZES.items():
        data = (whole * (nbytes // len(whole) + 1))[:nbytes]

        def name(data: bytes = data) -> str:
            content = hasher.content_digest(data)
            return clip_key(hasher, file_key(hasher, content, options, fingerprint="0" * 64, tenant=""), options)

        digest = partial(_digest, data)
        yield calls_row(
            "named", f"film of {size}", name, peer=DIGEST, peer_call=digest, calls=CALLS[size], repeats=3 * num_rounds
        )


def _digest(data: bytes) -> bytes:
    return blake3(data).digest()


def one_use(num_rounds: int) -> Iterator[Row]:
    """Measure in pairs, so that whatever else this machine does meanwhile is the same for both."""
    with services(model=SLOWER) as sides:
        for what, make in (("film", _new_film), ("sound", _new_sound)):
            pairs = []
            for number in range(PAIRS_PER_ROUND * num_rounds + 1):
                clips = [make() for _ in range(NUM_NEW)]
                taken = {index: _answered(*sides[index], clips) for index in ((0, 1) if number % 2 else (1, 0))}
                pairs.append((taken[0], taken[1]))
            for index, name in enumerate(("time of an answer", "CPU time of an answer")):
                mine, others = ([pair[side][index] for pair in pairs[1:]] for side in (0, 1))
                median = statistics.median(others)
                ratios = statistics.quantiles([one / other for one, other in zip(mine, others, strict=True)], n=4)
                for of, ratio in zip((", lower quartile", "", ", upper quartile"), ratios, strict=True):
                    yield row(name, NEW.format(what) + of, ratio * median, "ms", peer=OFF, peer_value=median)


def _answered(run_dir: Path, client: Client, clips: Sequence[Asked]) -> tuple[float, float]:
    """Return the milliseconds of an answer, and the CPU milliseconds of all processes with what comes behind it."""
    taken: list[float] = []
    cpu = _cpu_of(run_dir, lambda: taken.extend(timed(partial(encode, client, clip)) for clip in clips))
    return sum(taken) / len(clips), cpu / len(clips)


def _new_film() -> Video:
    return Video(film(NEW_S, NEW_SIZE, seed=next(_numbers)), fps=FPS)


def _new_sound() -> Audio:
    return Audio(sound(NEW_S, seed=next(_numbers)))


SECTIONS = {"known": known, "tower": tower, "longer": longer, "overlap": overlap, "hash": hashes, "one use": one_use}


def _open_sections(undo: contextlib.ExitStack) -> Mapping[str, harness.Section]:
    harness.require_extras(cv2="video", soundfile="audio", scipy="audio")
    return SECTIONS


if __name__ == "__main__":
    harness.main(
        "videos and sounds",
        SECTIONS,
        _open_sections,
        rounds=(ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
