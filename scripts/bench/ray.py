"""Measures what it costs to have an image encoded by an actor on another node of a Ray cluster, against here.

one       an image, encoded while its caller waits: encoders of two sizes
step      the sixteen images of a step, by actors on two other nodes
service   an embedding of a new image: a service that asks an actor, against one that encodes by itself

A cluster of three nodes on this machine: each has an object store of its own, so an item and its outputs cross as they
would between hosts, but for the network. One thread computes, here and there, and no actor is nicer than who asks,
as Ray's are by default. All share the machine's cores.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import torch

from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.client import Client
from mmcached.integrations.ray.encoder_actor import EncoderActor
from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from mmcached.worker.encoders.encoder import Encoder
from mmcached.worker.encoders.ray_actors import PREFIX, RayCluster, connect
from mmcached.worker.encoders.reference import ReferenceEncoder
from mmcached.worker.encoders.remote import RemoteEncoder
from mmcached.worker.model.encoder import ItemEncoder
from scripts.bench import harness
from scripts.bench.encode import new_images, service
from scripts.bench.harness import Bound, Row, compare, require_extras, row

NUM_NODES = 2
"""Nodes with an actor, beside the one that asks."""
STEP = 16
MODELS = {"2 layers": ModelConfig(), "24 layers": ModelConfig(encoder_layers=24)}
ROUNDS = 9
QUICK_ROUNDS = 3
NUM_CALLS = 4
START_S = 120.0
STORE_BYTES = 80 << 20
ONE = "encoded by an actor on another node"
TOGETHER = f"{STEP} images of a step, by actors on {NUM_NODES} other nodes"
EMBEDDING = "embedding of a new image, by a service that asks an actor"
BOUNDS = [
    Bound("try", ONE, "encoder of 24 layers", "here", 1.1),
    Bound("try", TOGETHER, "encoder of 2 layers", "here", 1.0),
]


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Yield the address of a cluster whose nodes but the head have the resources `node0`, `node1` …"""
    require_extras(ray="ray")
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        made.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
        for index in range(NUM_NODES):
            made.add_node(num_cpus=2, object_store_memory=STORE_BYTES, resources={f"node{index}": 1})
        made.wait_for_nodes()
        yield str(made.address)
    finally:
        made.shutdown()


def start_actors(address: str, namespace: str, model: ModelConfig, num_actors: int) -> None:
    """Start so many actors, each on a node of its own, that live as long as the cluster."""
    import ray

    connect(address, namespace)
    fields = msgspec.to_builtins(ServiceConfig(model=model, device="cpu"))
    kind: Any = ray.remote(EncoderActor)
    always = {"lifetime": "detached", "num_cpus": 0.1, "max_concurrency": 1000}
    handles = [
        kind.options(name=f"{PREFIX}{index}", resources={f"node{index}": 0.1}, **always).remote(fields)
        for index in range(num_actors)
    ]
    ray.get([handle.describe.remote() for handle in handles], timeout=START_S)
    ray.shutdown()


def away(address: str, namespace: str) -> RemoteEncoder:
    """Return an encoder that asks the actors of a namespace."""
    reached = RayCluster(address, namespace, timeout_s=START_S)
    return RemoteEncoder(reached, device=torch.device("cpu"), limit_s=START_S, start_timeout_s=START_S)


def here(model: ModelConfig) -> ReferenceEncoder:
    return ReferenceEncoder(model, ItemEncoder(model, torch.device("cpu")))


def image(model: ModelConfig) -> Mapping[str, torch.Tensor]:
    """Return the record of the largest image, of random pixels: 192 KiB."""
    pixels = torch.randint(0, 256, (64, 3 * model.patch_size**2), dtype=torch.uint8)
    return {"pixel_values": pixels, "grid": torch.tensor([8, 8])}


def ms(call: Callable[[], object], num: int) -> float:
    """Return the time of a call for each of the images that it encodes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3 / num


def each(encoder: Encoder, record: Mapping[str, torch.Tensor], num: int) -> None:
    for _ in range(num):
        encoder.encode(record, 64)


def together(encoder: RemoteEncoder, record: Mapping[str, torch.Tensor], num: int) -> None:
    for finish in [encoder.begin(record, 64) for _ in range(num)]:
        finish()


def one(num_rounds: int) -> Iterator[Row]:
    with cluster() as address:
        for params, model in MODELS.items():
            namespace = f"one-{params}"
            start_actors(address, namespace, model, 1)
            record, local = image(model), here(model)
            with away(address, namespace) as remote:
                check(remote, local, record)
                samplers = {
                    "away": partial(ms, partial(each, remote, record, NUM_CALLS), NUM_CALLS),
                    "here": partial(ms, partial(each, local, record, NUM_CALLS), NUM_CALLS),
                }
                taken = compare(samplers, num_rounds)
            yield row(ONE, f"encoder of {params}", taken["away"], "ms", peer="here", peer_value=taken["here"])


def step(num_rounds: int) -> Iterator[Row]:
    params, model = next(iter(MODELS.items()))
    with cluster() as address:
        start_actors(address, "step", model, NUM_NODES)
        record, local = image(model), here(model)
        with away(address, "step") as remote:
            check(remote, local, record)
            samplers = {
                "away": partial(ms, partial(together, remote, record, STEP), STEP),
                "here": partial(ms, partial(each, local, record, STEP), STEP),
            }
            taken = compare(samplers, num_rounds)
    yield row(TOGETHER, f"encoder of {params}", taken["away"], "ms", peer="here", peer_value=taken["here"])


def services(num_rounds: int) -> Iterator[Row]:
    params, model = next(iter(MODELS.items()))
    with cluster() as address:
        start_actors(address, "service", model, 1)
        elsewhere = EncoderConfig(ray_address=address, ray_namespace="service")
        with (
            service(model=model, encoder=elsewhere) as remote,
            service(model=model) as local,
            Client(remote) as theirs,
            Client(local) as ours,
        ):
            samplers = {
                "away": partial(embed, theirs),
                "here": partial(embed, ours),
            }
            taken = compare(samplers, num_rounds)
    yield row(EMBEDDING, f"encoder of {params}", taken["away"], "ms", peer="here", peer_value=taken["here"])


def embed(client: Client) -> float:
    """Return the milliseconds until an image that nobody has seen has its embedding."""
    images = new_images(NUM_CALLS)
    return ms(lambda: [client.encode([each]) for each in images], NUM_CALLS)


def check(remote: RemoteEncoder, local: ReferenceEncoder, record: Mapping[str, torch.Tensor]) -> None:
    if not torch.equal(remote.encode(record, 64)[EMBEDDINGS], local.encode(record, 64)[EMBEDDINGS]):
        raise AssertionError("the actor says something else")


SECTIONS = {"one": one, "step": step, "service": services}


if __name__ == "__main__":
    harness.begin_with({"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"})
    harness.main("encoders elsewhere", SECTIONS, lambda undo: SECTIONS, rounds=(ROUNDS, QUICK_ROUNDS), bounds=BOUNDS)
