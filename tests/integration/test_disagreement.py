"""Workers that compute different things, or keep other things than the engine's books list: never a wrong answer.

The first with real processes, whose group must be right again; the second, which is for the suite's own eyes, with real
roles in threads.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from mmcached.client import Client
from mmcached.wire.errors import InvariantError, MmcachedError, RequestAborted
from mmcached.wire.model_config import ModelConfig
from mmcached.worker.encoder_cache import EncoderCache
from tests.integration.faulty_service import LYING_WORKER, faulty_service
from tests.integration.local_service import LocalService
from tests.integration.lying_worker import MARK
from tests.integration.processes import descendants, eventually, is_alive, retryably, role_pids, small_config
from tests.integration.workloads import photo
from tests.present import present

PROMPT = "0: what is <image>, at length?"
MAX_TOKENS = 60


@pytest.mark.slow
def test_a_rank_that_computes_something_else_restarts_the_group_and_nobody_hears_its_token(
    run_dir: Path, tmp_path: Path
) -> None:
    """The token is rank 0's, whose answers go to clients."""
    config = small_config(restart_backoff_s=0.05)
    faulty = faulty_service(run_dir / "s", config, tmp_path / "config.json", LYING_WORKER)
    with faulty as service, Client(service.run_dir) as client:
        group = [*role_pids(service.process.pid)["engine"], *liars(service.process.pid)]
        assert len(group) == 3
        heard, error = listen(client)
        assert (service.run_dir / MARK).exists(), "the model ends this answer too early to be wrong in it"
        assert isinstance(error, RequestAborted)
        assert error.retryable
        ask = partial(client.generate, PROMPT, [photo(0)], MAX_TOKENS)
        answer = present(eventually(lambda: retryably(ask), lambda found: found is not None, "an answer"))
        wanted = answer.tokens
        assert 0 < len(heard) < len(wanted)
        assert heard == wanted[: len(heard)], "all before the wrong token, and not that"
        assert not [pid for pid in group if is_alive(pid)], "the whole group is another"
        assert service.stop() == 0


def forget_nothing(self: EncoderCache, keys: Iterable[str]) -> int:
    return 0


def forget_everything(self: EncoderCache, keys: Iterable[str]) -> int:
    self.clear()
    return 0


@pytest.mark.parametrize(
    ("fault", "encoder_cache_size", "what"),
    [(forget_nothing, 4, "lacks 0 .* holds [1-9] "), (forget_everything, 2048, "lacks [1-9] .* holds 0 ")],
)
def test_worker_whose_encoder_cache_is_not_as_listed_ends_the_engine(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[EncoderCache, Iterable[str]], int],
    encoder_cache_size: int,
    what: str,
) -> None:
    """The second image takes the place of the first, or should leave it alone."""
    model = ModelConfig(max_patches_per_image=4, audio_window=4)
    config = small_config(world_size=1, model=model, encoder_cache_size=encoder_cache_size)
    service = LocalService(run_dir, config)
    with contextlib.suppress(InvariantError), service, Client(run_dir) as client:
        client.encode([photo(0)])
        monkeypatch.setattr(EncoderCache, "drop", fault)
        with pytest.raises(RequestAborted):
            client.encode([photo(1)])
    (error,) = service.errors
    assert isinstance(error, InvariantError)
    assert re.search(f"rank 0 {what}", str(error)), error


def liars(supervisor: int) -> list[int]:
    """Return the living workers."""
    found = []
    for pid in descendants(supervisor):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if LYING_WORKER in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"):
                found.append(pid)
    return found


def listen(client: Client) -> tuple[list[int], MmcachedError | None]:
    """Return the tokens that come, and the error that ends them."""
    heard: list[int] = []
    try:
        for piece in client.generate_stream(PROMPT, [photo(0)], MAX_TOKENS):
            if isinstance(piece, list):
                heard += piece
    except MmcachedError as error:
        return heard, error
    return heard, None
