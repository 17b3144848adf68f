"""`mmcached demo --vllm`: a store, two vLLM servers with the adapter beside it, and the time to the first token.

Each image is sent to the first server twice, then to the other one, then to the other one under a name of its own:
items named by clients are not shared, so that this measures the image's cost there without mmcached. All requests about
an image are equal otherwise. Both servers are warmed up with other images.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from mmcached.cli.config.fields import DEFAULT
from mmcached.cli.config.settings import LoadedConfig
from mmcached.cli.demo.cost import Cost, shown_factor
from mmcached.cli.demo.photos import Photo, photos_in
from mmcached.cli.demo.stages import Stages, shown_stages
from mmcached.cli.demo.vllm_server import Launch, Reply, VllmServer, running
from mmcached.cli.serve.child_service import ChildService
from mmcached.cli.terminal_text import shown
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import DeadlineExceeded, InvalidRequest, ServiceUnavailable

STORE_GB = 0.5
RANDOM = "random weights, 86 M parameters in the vision tower"
RANDOM_OPTIONS = ("--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager")
RANDOM_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
RANDOM_SIDE, SIDE = 448, 1024
"""Side of a drawn image in pixels: the largest that the random model takes, and for other models."""
NUM_PICTURES = 5
ONE_GPU = ("--gpu-memory-utilization", "0.4")
MODEL_S = 300.0
SAVED_S = 60.0
POLL_S = 0.01
CLOSE_FACTOR = 2.0
FIRST, OTHER = "first server", "other server"


@dataclass(frozen=True, slots=True)
class Situation:
    """The replies to one question about each image, and the runs of the server's encoder for them."""

    name: str
    replies: list[Reply] = field(default_factory=list)
    encoder_runs: list[int] = field(default_factory=list)

    def ask(self, server: VllmServer, picture: bytes, *, name: str | None = None) -> None:
        """Ask a server that is otherwise idle."""
        before = server.num_encoded()
        self.replies.append(server.ask(picture, name=name))
        self.encoder_runs.append(server.num_encoded() - before)

    @property
    def cost(self) -> Cost:
        return Cost(self.name, [reply.first_token_s for reply in self.replies])


def run_vllm_demo(loaded: LoadedConfig, *, model: str | None, arguments: Sequence[str], images: Path | None) -> int:
    """Run the demo on the terminal.

    Args:
        model: Name or path; None makes one with random weights.
        arguments: Further options of both servers.

    Returns:
        The exit status: 0 if the first server has encoded each image once, the other one none of them, and all
            generated tokens are equal; else 1.

    Raises:
        InvalidRequest: No model could be made, or there are no images.
        ServiceUnavailable: The store or a server did not start, or has ended.
        DeadlineExceeded: The store or a server did not answer in time.
    """
    pictures = photos_in(images)[:NUM_PICTURES] if images else _drawn(NUM_PICTURES, SIDE if model else RANDOM_SIDE)
    launch = Launch(model or "", arguments, _environment())
    console = Console()
    console.print(shown(f"two vLLM servers and a store; model: {model or RANDOM}"), highlight=False, markup=False)
    with _ending_in_order(), tempfile.TemporaryDirectory(prefix="mmc-demo-") as folder, shown_stages(console) as stages:
        scratch = Path(folder)
        if model is None:
            with stages.stage("make a model with random weights"):
                launch = _random_model(scratch / "model", launch)
        situations = _play(_store_config(loaded), launch, pictures, scratch, stages)
    return report(situations, console)


def visible_gpus() -> list[str]:
    """Return the GPUs that a process may use, named as in CUDA_VISIBLE_DEVICES; does not import torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    return [str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def shares_of_gpus(launch: Launch, gpus: Sequence[str]) -> list[Launch]:
    """Return the launches of two servers: each with half of the GPUs, or with less than half of the only one."""
    if len(gpus) < 2:
        return [launch.preceded_by(ONE_GPU) if gpus else launch] * 2
    half = len(gpus) // 2
    parts = gpus[:half], gpus[half : 2 * half]
    return [launch.preceded_by(environment={"CUDA_VISIBLE_DEVICES": ",".join(part)}) for part in parts]


def _play(
    store_config: ServiceConfig, launch: Launch, pictures: Sequence[Photo], scratch: Path, stages: Stages
) -> list[Situation]:
    """Start a store and both servers, ask about each image, and end all of them."""
    with ExitStack() as stack:
        with stages.stage("start a store"):
            store = stack.enter_context(ChildService(scratch / "run", store_config, scratch / "config.json"))
        client = stack.enter_context(Client(store.run_dir))
        servers = []
        # In sequence: vLLM measures the free memory of a GPU when it starts, and the second start reuses the first
        # one's compilations.
        launch = launch.preceded_by(_adapter(store.run_dir))
        for name, own in zip((FIRST, OTHER), shares_of_gpus(launch, visible_gpus()), strict=True):
            with stages.stage(f"start vLLM, {name}"):
                servers.append(stack.enter_context(running(name, own, scratch / f"{name}.log")))
        with stages.stage("warm both up with other pictures", 3) as advance:
            _warm_up(servers, client, advance)
        with stages.stage(f"send {len(pictures)} pictures to both", len(pictures)) as advance:
            return _ask(servers, client, pictures, advance)


def _warm_up(servers: Sequence[VllmServer], client: Client, advance: Callable[[], None]) -> None:
    """Make each server encode, save and load once, so that measured requests do not include first-use costs."""
    first, other = _drawn(2, SIDE, seed=1000)
    for server, picture in zip(servers, (first, other), strict=True):
        with _saved(client):
            server.ask(picture.data)
        advance()
    for server, picture in zip(servers, (other, first), strict=True):
        server.ask(picture.data)
    advance()


def _ask(
    servers: Sequence[VllmServer], client: Client, pictures: Sequence[Photo], advance: Callable[[], None]
) -> list[Situation]:
    first, other = servers
    new, again = Situation(f"new, in the {FIRST}"), Situation(f"again, in the {FIRST}")
    found, alone = Situation(f"in the {OTHER}"), Situation(f"in the {OTHER}, not shared")
    for number, picture in enumerate(pictures):
        with _saved(client):
            new.ask(first, picture.data)
        again.ask(first, picture.data)
        found.ask(other, picture.data)
        alone.ask(other, picture.data, name=f"demo {number}")
        advance()
    return [new, again, found, alone]


@contextlib.contextmanager
def _saved(client: Client) -> Iterator[None]:
    """Wait after the block until the store has one record more: outputs are saved after the answer."""
    before = client.stats().store
    yield
    give_up = time.monotonic() + SAVED_S
    while (now := client.stats().store).puts == before.puts:
        if now.refusals > before.refusals:
            raise ServiceUnavailable("the store has refused the picture's embedding: --store-gb enlarges it")
        if time.monotonic() > give_up:
            raise DeadlineExceeded(f"{FIRST}: save of an encoder output", SAVED_S)
        time.sleep(POLL_S)


def report(situations: Sequence[Situation], console: Console) -> int:
    """Print the results; return the exit status."""
    new, _, found, _ = situations
    num = len(new.replies)
    title = f"a request with one picture (median of {num}), time to the first token"
    table = Table(title=title, title_justify="left")
    table.add_column("situation", no_wrap=True)
    for column in ("ms", "saves", "encoder runs"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in situations:
        factor = "" if each is new else shown_factor(new.cost, each.cost)
        table.add_row(each.name, f"{each.cost.median_s * 1e3:,.1f}", factor, str(sum(each.encoder_runs)))
    console.print(table)
    if new.cost.median_s < CLOSE_FACTOR * found.cost.median_s:
        words = "this model's encoder is cheap here beside the rest of a request: its runs show what is saved"
        console.print(words, highlight=False)
    is_shared = all(new.encoder_runs) and not any(found.encoder_runs)
    words = f"encoder runs for {num} pictures: {sum(new.encoder_runs)} in the {FIRST}, "
    _print_verdict(f"{words}{sum(found.encoder_runs)} in the {OTHER}", is_shared, console)
    tokens = {tuple(reply.tokens for reply in each.replies) for each in situations}
    logprobs = {tuple(reply.logprobs for reply in each.replies) for each in situations}
    are_equal = len(tokens) == 1
    bits = "also their log-probabilities, bit for bit" if len(logprobs) == 1 else "their log-probabilities differ"
    same = f"equal in all four rows: the {num * len(new.replies[0].tokens)} generated tokens; {bits}"
    _print_verdict(same if are_equal else "DIFFERENT: the generated tokens", are_equal, console)
    return 0 if is_shared and are_equal else 1


def _print_verdict(words: str, is_good: bool, console: Console) -> None:
    console.print(words, style="green" if is_good else "bold red", highlight=False)


def _store_config(loaded: LoadedConfig) -> ServiceConfig:
    size = STORE_GB if loaded.origins["store_gb"] == DEFAULT else loaded.config.store_gb
    return msgspec.structs.replace(loaded.config, world_size=0, store_gb=size)


def _adapter(run_dir: Path) -> list[str]:
    """Return the option that docs/hosts/vllm.md documents."""
    transfer = {
        "ec_connector": "MmcachedECConnector",
        "ec_connector_module_path": "mmcached.integrations.vllm",
        "ec_role": "ec_both",
        "ec_connector_extra_config": {"run_dir": str(run_dir)},
    }
    return ["--ec-transfer-config", json.dumps(transfer)]


def _environment() -> dict[str, str]:
    """Return variables for both servers, so that they share the cores: no thread binding, half of the threads each."""
    num_threads = max(1, len(os.sched_getaffinity(0)) // 2)
    defaults = {
        "OMP_NUM_THREADS": str(num_threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | {"VLLM_API_KEY": ""}


def _random_model(folder: Path, launch: Launch) -> Launch:
    words = [sys.executable, "-m", "mmcached.cli.demo.random_checkpoint", str(folder)]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=MODEL_S)
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded("a model with random weights", MODEL_S) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InvalidRequest("--vllm", said, "no model could be made: give one with --vllm-model")
    launch = replace(launch, model=str(folder))
    return launch.preceded_by(RANDOM_OPTIONS, RANDOM_ENVIRONMENT)


def _drawn(count: int, side: int, *, seed: int = 0) -> list[Photo]:
    """Return images of random squares, `side` pixels wide and high."""
    draw = np.random.default_rng(seed)
    photos = []
    for number in range(count):
        file = io.BytesIO()
        squares = Image.fromarray(draw.integers(0, 256, (7, 7, 3), dtype=np.uint8))
        squares.resize((side, side), Image.Resampling.NEAREST).save(file, "PNG")
        photos.append(Photo(f"squares {number}", file.getvalue()))
    return photos


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into exceptions, so that all started processes are ended."""
    former = {signum: signal.signal(signum, _end) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
