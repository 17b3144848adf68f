"""Measures what SGLang's tokenizer process does for a picture, with shared processed inputs and without.

From the file to the items that SGLang sends to its ranks: SGLang's own processor of Qwen2.5-VL, in one process. Without
mmcached SGLang keeps no processed pictures, which is its default; what its own cache takes for a known picture is the
least that a hit can take. A named picture has the SHA-256 of its file.

Runs in the environment of `make test-sglang`: `.venv-vllm/bin/python -m scripts.bench.adapters_sglang`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench import harness
from scripts.bench.adapters_servers import make_checkpoint, start_store
from scripts.bench.harness import Bound, Row, Section, Unavailable, row, wall_us
from scripts.bench.processing import photograph

PROCESSING = "processing"
OFF, OWN = "without mmcached", "in SGLang's own cache"
KNOWN, NAMED, NEW = "picture that the host has processed", "the same by its digest", "new picture, median of pairs"
SIDES = (448, 1792)
STORE_GB = 2.0
BOUNDS = [
    *(Bound("reach", KNOWN, f"{side} px", OFF, 0.05) for side in SIDES),
    *(Bound("reach", NAMED, f"{side} px", OFF, 0.03) for side in SIDES),
    *(Bound("reach", KNOWN, f"{side} px", OWN, 1.2) for side in SIDES),
    *(Bound("reach", NEW, f"{side} px", OFF, 1.03) for side in SIDES),
]


def compare_processing(num_rounds: int) -> Iterator[Row]:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    try:
        from tests.hosts.sglang.processing import Server
    except ImportError as error:
        raise Unavailable(f"SGLang is not installed here: {error}") from error
    with ExitStack() as stack:
        run_dir, checkpoint = start_store(stack, STORE_GB), make_checkpoint(stack, max_pixels=max(SIDES) ** 2)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
        start = partial(_server, stack, Server, checkpoint)
        servers = {OFF: start(None), OWN: start(None, mm_preprocess_cache_size_mb=512)}
        servers |= {"first": start(run_dir), "second": start(run_dir)}
        for side in SIDES:
            for server in servers.values():
                _prepare_ms(server, _file(folder, side, -1))
            yield from _of_one_size(servers, partial(_file, folder, side), f"{side} px", num_rounds)


def _server(stack: ExitStack, make: Callable[[Path], Any], checkpoint: Path, run_dir: Path | None, **more: Any) -> Any:
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=str(checkpoint), device="cpu", trust_mm_content_hashes=run_dir is not None, **more
    )
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=0, gpu_id=0))
    server = make(checkpoint)
    stack.callback(server.close)
    if run_dir is not None:
        server.share(run_dir)
    return server


def _of_one_size(
    servers: Mapping[str, Any], file: Callable[[int], Path], params: str, num_rounds: int
) -> Iterator[Row]:
    times: dict[str, list[float]] = {name: [] for name in (OFF, OWN, NEW, KNOWN, NAMED)}
    for number in range(num_rounds):
        picture = file(number)
        for name, server in ((OFF, servers[OFF]), (NEW, servers["first"]))[:: 1 if number % 2 else -1]:
            times[name].append(_prepare_ms(server, picture))
        servers["first"].drain()
        _prepare_ms(servers[OWN], picture)
        times[OWN].append(_prepare_ms(servers[OWN], picture))
        times[KNOWN].append(_prepare_ms(servers["second"], picture))
        digest = f"sha256:{hashlib.sha256(picture.read_bytes()).hexdigest()}"
        times[NAMED].append(_prepare_ms(servers["second"], picture, mm_content_hashes=[digest]))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, peer in ((KNOWN, OFF), (NAMED, OFF), (KNOWN, OWN)):
        yield row(name, params, medians[name], "ms", peer=peer, peer_value=medians[peer])
    ratio = statistics.median(ours / theirs for ours, theirs in zip(times[NEW], times[OFF], strict=True))
    yield row(NEW, params, ratio, "×", peer=OFF, peer_value=1.0)


def _prepare_ms(server: Any, picture: Path, **request: Any) -> float:
    url = f"data:image/jpeg;base64,{base64.b64encode(picture.read_bytes()).decode()}"
    return wall_us(lambda: server.run(url, **request)) / 1000


def _file(folder: Path, side: int, number: int) -> Path:
    """Return the file of a photograph; files of other numbers differ after the picture's end."""
    path = folder / f"{side}.{number}.jpg"
    if not path.exists():
        path.write_bytes(photograph(side * side / 1e6) + b"%d" % number)
    return path


def open_sections(_undo: ExitStack) -> Mapping[str, Section]:
    return {PROCESSING: compare_processing}


if __name__ == "__main__":
    harness.main(
        "what SGLang does for a picture before it is scheduled",
        [PROCESSING],
        open_sections,
        rounds=(40, 10),
        bounds=BOUNDS,
    )
