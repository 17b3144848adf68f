"""Services and encoders on a cluster of three nodes: placed, asked, killed one by one and all at once, taken away.

One cluster for the whole module, so the order of the tests counts; each leaves everything at work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.cli.ray.placed_config import read
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.client.known_outputs import contents_of, output_keys
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from tests.hosts.ray.clusters import (
    Nodes,
    encoder_processes,
    kill,
    parent_of,
    pictures,
    placed,
    processes,
    ray,
    wait_until,
)

FILE = """
address: {address}
serve:
  world_size: 1
  device: cpu
  mm_processor_workers: 1
  num_kv_blocks: 64
  max_model_len: 512
  store_gb: 0.0625
  mm_processor_cache_gb: 0.0625
  tensor_prefix_cache_gb: 0.0078125
  limits: {{remote_encode_s: 12, max_inline_output_kb: 0}}
encoders:
  count: 3
  placement: SPREAD
frontends:
  resource: host
  run_dir: {folder}/{{node}}
"""
NO_RESTART = """
import ray, sys
from ray.util import list_named_actors
ray.init(address=sys.argv[1], namespace="mmcached", log_to_driver=False)
for name in list_named_actors():
    if name.startswith("encoder-"):
        ray.kill(ray.get_actor(name), no_restart=True)
"""
_seeds = count(1)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with closing(Nodes(3, num_services=2)) as made:
        yield made


@pytest.fixture(scope="module")
def config(nodes: Nodes) -> Iterator[Path]:
    """Place everything, and yield the file that says what."""
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as folder:  # short: run directories get sockets
        file = Path(folder) / "placed.yaml"
        file.write_text(FILE.format(address=nodes.address, folder=folder))
        ray("up", file)
        yield file
        ray("down", file)
        assert placed(file) == {}


@pytest.fixture(scope="module")
def run_dirs(config: Path) -> list[Path]:
    return [Path(each["about"]) for name, each in placed(config).items() if name.startswith("service-")]


@pytest.fixture(scope="module")
def local(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a service of the same settings that encodes by itself."""
    folder = tmp_path_factory.mktemp("l")
    settings: ServiceConfig = read(config).serve
    with ChildService(folder / "s", settings, folder / "c.json") as service, Client(service.run_dir) as client:
        client.encode(new_pictures(1))  # it opens what it keeps open
        yield client


def new_pictures(number: int) -> list[bytes]:
    return pictures(number, next(_seeds))


def assert_right(found: list[torch.Tensor], files: list[bytes], local: Client) -> None:
    wanted = local.encode(files)
    assert len(found) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def wait_until_encoded(run_dir: Path, local: Client) -> None:
    """Wait until a new picture is encoded without an error, and look at every bit."""
    files = new_pictures(1)
    found: list[torch.Tensor] = []
    errors: list[MmcachedError] = []

    def is_encoded() -> bool:
        with Client(run_dir) as client:
            try:
                found[:] = client.encode(files)
            except MmcachedError as error:
                errors.append(error)
        return bool(found)

    wait_until(is_encoded, "an encoder answers")
    assert all(error.retryable for error in errors)
    assert_right(found, files, local)


def test_encoders_are_spread_and_each_chosen_node_has_a_service(config: Path, nodes: Nodes) -> None:
    found = placed(config)
    assert len({found[f"encoder-{index}"]["node"] for index in range(3)}) == 3
    services = {each["node"] for name, each in found.items() if name.startswith("service-")}
    assert services == set(nodes.services)


def test_up_again_changes_nothing(config: Path) -> None:
    before, pids = placed(config), sorted(encoder_processes())
    ray("up", config)
    assert (placed(config), sorted(encoder_processes())) == (before, pids)


def test_what_actors_encode_has_the_bits_of_a_local_encoder_and_is_in_the_own_store(
    run_dirs: list[Path], local: Client
) -> None:
    assert len(run_dirs) == 2
    for run_dir in run_dirs:
        files = new_pictures(4)
        with Client(run_dir, fail_open=False) as client:
            assert_right(client.encode(files), files, local)
            keys = list(output_keys(client.service, contents_of(client.service, files), [], "").values())
            wait_until(partial(_has_all, client, keys), "outputs are in the store")


def test_an_encoder_that_is_killed_is_restarted_and_no_picture_is_lost(
    config: Path, run_dirs: list[Path], local: Client
) -> None:
    victim, *others = encoder_processes()
    answers, errors = encode_while(run_dirs[0], lambda: kill(victim), local)
    assert answers
    assert errors == [], "one of three died: another one has encoded it"
    wait_until(lambda: len(set(encoder_processes()) - {victim, *others}) == 1, "it is restarted")
    wait_until(lambda: len(placed(config)) == 5, "all answer")


def test_an_encoder_that_hangs_is_late_and_another_one_is_asked(
    config: Path, run_dirs: list[Path], local: Client
) -> None:
    stopped = encoder_processes()[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        files = new_pictures(6)
        with Client(run_dirs[0], fail_open=False) as client:
            assert_right(client.encode(files), files, local)
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: len(placed(config)) == 5, "it answers again")


def test_a_worker_that_is_killed_comes_back_to_the_cluster(run_dirs: list[Path], local: Client) -> None:
    (worker,) = processes(sys.executable, "mmcached\0worker", str(run_dirs[0]))
    kill(worker)
    wait_until(lambda: worker not in processes(sys.executable, "mmcached\0worker", str(run_dirs[0])), "it is dead")
    wait_until_encoded(run_dirs[0], local)


def test_a_service_and_its_actor_end_together_and_are_started_anew(run_dirs: list[Path], local: Client) -> None:
    def supervisors() -> list[int]:
        return processes(sys.executable, "mmcached\0serve", str(run_dirs[1]))

    def is_another(pid: int) -> bool:
        return len(supervisors()) == 1 and supervisors() != [pid]

    (service,) = supervisors()
    kill(service)
    wait_until(partial(is_another, service), "the actor has started another service")
    wait_until_encoded(run_dirs[1], local)
    (service,) = supervisors()
    kill(parent_of(service))
    wait_until(partial(is_another, service), "Ray has started another actor")
    wait_until_encoded(run_dirs[1], local)


def test_a_node_that_is_lost_takes_no_picture_with_it(
    config: Path, run_dirs: list[Path], nodes: Nodes, local: Client
) -> None:
    lost = nodes.ids[2]
    name = next(name for name, each in placed(config).items() if each["node"] == lost)
    answers, errors = encode_while(run_dirs[0], lambda: nodes.kill(lost), local)
    assert answers
    assert all(error.retryable for error in errors)
    wait_until(lambda: placed(config).get(name, {}).get("node", lost) != lost, "it lives elsewhere")
    wait_until_encoded(run_dirs[0], local)


def test_without_encoders_a_picture_is_to_be_tried_again_and_all_else_goes_on(
    config: Path, run_dirs: list[Path], nodes: Nodes, local: Client
) -> None:
    with Client(run_dirs[0], fail_open=False) as client:
        known = new_pictures(1)
        client.encode(known)
        subprocess.run([sys.executable, "-c", NO_RESTART, nodes.address], check=True, timeout=120)
        wait_until(lambda: not encoder_processes(), "all encoders are gone")
        pid = client.service
        with pytest.raises(MmcachedError) as caught:
            client.encode(new_pictures(1))
        assert caught.value.retryable
        assert_right(client.encode(known), known, local)
        assert client.generate("no picture", max_tokens=1).tokens
        assert client.service == pid, "nobody was restarted"
    ray("up", config)
    wait_until_encoded(run_dirs[0], local)


def _has_all(client: Client, keys: list[str]) -> bool:
    return all(client.contains_many(keys))


def encode_while(run_dir: Path, harm: Any, local: Client) -> tuple[int, list[MmcachedError]]:
    """Do harm while pictures are encoded; return how many answers there were, all of them right, and the errors."""
    errors: list[MmcachedError] = []
    answers: list[tuple[list[bytes], list[torch.Tensor]]] = []
    is_over = threading.Event()

    def encode(seed: int) -> None:
        with Client(run_dir, fail_open=False) as client:
            for turn in count():
                files = pictures(3, 1_000_000 * (1 + seed) + 1000 * next(_seeds) + turn)
                try:
                    answers.append((files, client.encode(files)))
                except MmcachedError as error:
                    errors.append(error)
                if is_over.is_set():
                    return

    threads = [threading.Thread(target=encode, args=[seed]) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(answers) >= 4, "pictures are encoded")
        harm()
        before = len(answers)
        wait_until(lambda: len(answers) >= before + 10, "pictures are encoded again")
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    for files, found in answers:
        assert_right(found, files, local)
    return len(answers), errors
