"""Measures the way from shared memory to a CUDA device: copies, pinning, a tower's work against a hit, a step.

Absolute times of one run are meant here, beside the ratios. Each section ends within two minutes; `gpu_all` runs them
one by one, and keeps what it has.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import torch

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.client.device import DeviceLoader
from mmcached.client.device.runtime import PageRefused
from mmcached.client.device.streams import CudaCopies, RunningCopy
from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.pages import Pages
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.messages.worker import RunChunk
from mmcached.worker.model.batch import pack
from mmcached.worker.model.kv_pool import KVPool
from mmcached.worker.model.model import ReferenceModel
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Unavailable, row
from scripts.bench.leases import Lease
from scripts.studies.gpu_memory import Direct, new_event, pinned, pinned_for_writing, require_cuda
from scripts.studies.gpu_tower import PATCH, WIDTH, Tower, num_patches

MIB, GIB = 1 << 20, 1 << 30
SIZES = {"1 MiB": MIB, "4.7 MiB": int(4.7 * MIB), "19 MiB": 19 * MIB, "64 MiB": 64 * MIB}
PINNED = "pinned by torch"
IN_PLACE = "out of the pinned ring"
DEADLINE_S = 30.0
PIN_S = 5.0
"""How long a loader may take to pin what is read, where the device takes it."""
NUM_GENERATIONS = 8
"""Whose steps are measured: each is the mean of 256."""
CONTEXT = 256
"""Tokens of each request, of a step whose time is measured alone."""

Copier = Callable[..., RunningCopy]


@contextlib.contextmanager
def ring_with(
    records: dict[str, torch.Tensor], data_bytes: int
) -> Iterator[tuple[RingAnnouncement, Pages, dict[str, torch.Tensor]]]:
    """Yield a new ring, its pages as a reader has them, and views of the records in it."""
    with contextlib.ExitStack() as stack:
        ring = RingWriter.create(data_bytes=data_bytes, max_readers=2, max_object_bytes=data_bytes)
        store = stack.enter_context(ObjectStoreWriter(ring))
        if not ring.wait_populated(DEADLINE_S):
            raise Unavailable("the ring's pages are not there in time")
        handles = {name: store.put(name, {"data": tensor}) for name, tensor in records.items()}
        entry = stack.enter_context(ReaderEntry.attach(ring.announcement))
        if not ring.readers.attach(entry.reader_id, entry.incarnation):
            raise RuntimeError("the entry was not attached")
        reader = RingReader.open(ring.announcement)
        objects = stack.enter_context(ObjectStoreReader(reader))
        views = {}
        for name, handle in handles.items():
            if not all(entry.take_leases([Lease(handle)], reader.look)):
                raise RuntimeError("a lease was not taken")
            views[name] = objects.get(handle, tensors="torch")["data"]
        yield ring.announcement, reader.pages, views
        views.clear()


def times_of(num_rounds: int, copy: Copier, *arguments: object) -> tuple[float, float]:
    """Return medians: seconds until the copy has ended, and until the call returned, on a device that does nothing."""
    ended, returned = [], []
    for _ in range(num_rounds + 2):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        done = copy(*arguments)
        returned.append(time.perf_counter() - begun)
        done.synchronize()
        ended.append(time.perf_counter() - begun)
    return statistics.median(ended[2:]), statistics.median(returned[2:])


def copies(num_rounds: int) -> Iterator[Row]:
    """Yield the rates of copies to the device and back."""
    device = require_cuda()
    records = {name: torch.randint(0, 255, (nbytes,), dtype=torch.uint8) for name, nbytes in SIZES.items()}
    direct, ours = Direct(device), CudaCopies(device)
    ours.warm_up()
    with ring_with(records, GIB) as (ring, pages, views):
        targets = {name: torch.empty(nbytes, dtype=torch.uint8, device=device) for name, nbytes in SIZES.items()}
        own = {name: tensor.pin_memory() for name, tensor in records.items()}
        ways: dict[str, Callable[[str], RunningCopy]] = {
            "pageable": lambda name: direct.copy(targets[name], views[name]),
            "by way of pinned memory": lambda name: _begun(ours, views[name], is_pinned=False),
            PINNED: lambda name: direct.copy(targets[name], own[name]),
        }
        found = {way: {name: times_of(num_rounds, copy, name) for name in SIZES} for way, copy in ways.items()}
        try:
            with pinned(ring) as (how, data):
                places = {name: view.data_ptr() - pages.address for name, view in views.items()}
                found[f"{IN_PLACE}, mapped {how}"] = {
                    name: times_of(num_rounds, partial(_begun, ours, is_pinned=True), data[place:][: SIZES[name]])
                    for name, place in places.items()
                }
                del data
        except PageRefused as error:
            harness.tell_once(f"{IN_PLACE}: rows are left out: {error}")
        with loader_that_pins(device, views) as loader:
            found["by a DeviceLoader"] = {name: times_of(num_rounds, loaded, loader, views[name]) for name in SIZES}
            for name, view in views.items():
                if not torch.equal(loader.load([view])[0].cpu(), records[name]):
                    raise RuntimeError(f"{name}: the device has other bytes")
        for way, of_size in found.items():
            for name, (ended_s, returned_s) in of_size.items():
                rate, best = (SIZES[name] / s / 1e9 for s in (ended_s, found[PINNED][name][0]))
                yield row(f"to the device: {way}", name, rate, "GB/s", peer=PINNED, peer_value=best)
                yield row(f"the call: {way}", name, returned_s * 1e6, "µs", peer="the copy", peer_value=ended_s * 1e6)
    yield from _copies_back(targets, direct, num_rounds)


@contextlib.contextmanager
def loader_that_pins(device: torch.device, views: dict[str, torch.Tensor]) -> Iterator[DeviceLoader]:
    """Yield a loader that has pinned what lies under the views, if the device takes it."""
    with DeviceLoader(device, max_pinned_bytes=8 * GIB) as loader:
        give_up = time.monotonic() + PIN_S
        wanted = sum(view.nbytes for view in views.values())
        while loader.pinned_bytes < wanted and time.monotonic() < give_up:
            for view in views.values():
                loader.load([view])
            torch.cuda.synchronize()
        if loader.pinned_bytes < wanted:
            harness.tell_once("the loader has pinned nothing: its figures are of copies by way of pinned memory")
        yield loader


def _begun(ours: CudaCopies, view: torch.Tensor, *, is_pinned: bool) -> torch.cuda.Event:
    ours.copy([(view, is_pinned)])
    done = new_event()  # not the copy's own: to be woken from that takes longer than to look, as at all others
    done.record()
    return done


def loaded(loader: DeviceLoader, view: torch.Tensor) -> torch.cuda.Event:
    loader.load([view])
    done = new_event()
    done.record()
    return done


def _copies_back(targets: dict[str, torch.Tensor], direct: Direct, num_rounds: int) -> Iterator[Row]:
    """Yield the rates from the device into a ring that this process writes, into pinned and into plain memory."""
    largest = max(SIZES.values())
    plain, own = torch.empty(largest, dtype=torch.uint8), torch.empty(largest, dtype=torch.uint8).pin_memory()
    with pinned_for_writing(mmap.mmap(-1, largest)) as ring:
        found = {
            way: {
                name: times_of(num_rounds, direct.copy, host[:nbytes], targets[name])[0]
                for name, nbytes in SIZES.items()
            }
            for way, host in {"pageable": plain, PINNED: own, "into a pinned ring": ring}.items()
        }
    again = torch.empty(largest, dtype=torch.uint8)
    for name, nbytes in SIZES.items():  # what is saved lies in pinned memory, and is copied into the ring by the CPU
        copied_s = min(_seconds(partial(again[:nbytes].copy_, own[:nbytes])) for _ in range(num_rounds))
        rate, best = (nbytes / s / 1e9 for s in (found[PINNED][name] + copied_s, found["into a pinned ring"][name]))
        yield row("from the device: as it is saved", name, rate, "GB/s", peer="into a pinned ring", peer_value=best)
    for way, of_size in found.items():
        for name, ended_s in of_size.items():
            rate, best = (SIZES[name] / s / 1e9 for s in (ended_s, found[PINNED][name]))
            yield row(f"from the device: {way}", name, rate, "GB/s", peer=PINNED, peer_value=best)


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def registering(num_rounds: int) -> Iterator[Row]:
    """Yield what it takes to pin a ring, alone and beside another process, and what stays of one that was killed."""
    require_cuda()
    free_bytes = _free_shared_bytes()
    for num_gib in (1, 4, 8):
        ring = RingWriter.create(data_bytes=num_gib * GIB, max_readers=2, max_object_bytes=GIB)
        with ring:
            if not ring.wait_populated(DEADLINE_S):
                harness.tell_once(f"{num_gib} GiB: rows are left out: its pages are not there in time")
                continue
            params, begun = f"{num_gib} GiB", time.perf_counter()
            with contextlib.ExitStack() as stack:
                try:
                    how = stack.enter_context(pinned(ring.announcement))[0]  # the bytes would keep it mapped
                except PageRefused as error:
                    raise Unavailable(str(error)) from error
                alone_s = time.perf_counter() - begun
                per_gib_ms = alone_s / num_gib * 1e3
                name = f"pinning a ring, mapped {how}"
                yield row(name, params, per_gib_ms, "ms/GiB", peer="100 ms/GiB", peer_value=100)
                if num_gib == 1:
                    beside_ms = _in_child(ring, is_killed=False) * 1e3
                    yield row("a second process", params, beside_ms, "ms", peer="the first", peer_value=alone_s * 1e3)
                    yield from _killed(ring)
    lost = max(0, free_bytes - _free_shared_bytes())
    yield row("shared memory of pinned rings", "not back", lost / MIB, "MiB", peer="1 MiB", peer_value=1)


def _free_shared_bytes() -> int:
    gc.collect()
    room = os.statvfs(SHM_DIR)
    return room.f_bavail * room.f_frsize


def _in_child(ring: RingWriter, *, is_killed: bool) -> float:
    """Have a process pin the ring and hold a lease; return the seconds its pinning took. End it, or kill it."""
    handle = _record(ring)
    command = [sys.executable, "-m", "scripts.studies.gpu_reader"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            if child.stdin is None or child.stdout is None:
                raise RuntimeError("no pipes")
            child.stdin.write(msgspec.json.encode(ring.announcement) + b"\n")
            child.stdin.flush()
            reader_id, incarnation = msgspec.json.decode(child.stdout.readline(), type=tuple[int, int])
            if not ring.readers.attach(reader_id, incarnation):
                raise RuntimeError("the child's entry was not attached")
            child.stdin.write(msgspec.json.encode(handle) + b"\n")
            child.stdin.flush()
            took_s = msgspec.json.decode(child.stdout.readline(), type=float)
            if is_killed:
                child.kill()
        finally:
            if child.stdin is not None and not is_killed:
                child.stdin.close()
            child.wait(DEADLINE_S)
    return took_s


def _record(ring: RingWriter) -> Handle:
    claim = ring.claim(SIZES["19 MiB"])
    claim.buffer[:] = 7
    return ring.commit(claim)


def _killed(ring: RingWriter) -> Iterator[Row]:
    """Kill a process that has pinned the ring, and look whether its lease comes back."""
    _in_child(ring, is_killed=True)
    begun = time.perf_counter()
    while ring.stats().leases:
        ring.readers.poll_deaths()
        if time.perf_counter() - begun > DEADLINE_S:
            raise RuntimeError("the lease of a killed reader did not come back")
        time.sleep(0.001)
    back_s = time.perf_counter() - begun
    yield row("lease of a killed reader", "is back", back_s * 1e3, "ms", peer="1 s", peer_value=1000)


def tower(num_rounds: int) -> Iterator[Row]:
    """Yield a picture's encoding, and the same output from the ring until the device has it."""
    device = require_cuda()
    torch.manual_seed(0)
    model = Tower().to(device, torch.bfloat16).eval()
    for megapixels in (0.3, 2, 8):
        count = num_patches(int(megapixels * 1e6))
        patches = torch.randn(count, 3 * PATCH**2, device=device, dtype=torch.bfloat16)
        with torch.inference_mode():
            encode_s, _ = times_of(num_rounds, _encoded, model, patches)
            output = model(patches).cpu()
        views = {"output": output.view(torch.uint8).reshape(-1)}
        with ring_with(views, 512 * MIB) as (_, _, found), loader_that_pins(device, found) as loader:
            hit_s, _ = times_of(num_rounds, loaded, loader, found["output"])
        params = f"{megapixels} Mpx, {count} × {WIDTH}"
        yield row("hit", params, hit_s * 1e3, "ms", peer="encode", peer_value=encode_s * 1e3)


def _encoded(model: Tower, patches: torch.Tensor) -> torch.cuda.Event:
    model(patches)
    done = new_event()
    done.record()
    return done


def stall(num_rounds: int) -> Iterator[Row]:
    """Yield what one load takes away from a stream that computes, and from the thread that queues its work."""
    device = require_cuda()
    left = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    num_items, per_item = 32, 16
    record = {"item": torch.zeros(SIZES["4.7 MiB"], dtype=torch.uint8)}
    with ring_with(record, 64 * MIB) as (_, _, views), loader_that_pins(device, views) as loader:

        def run(*, loads: bool) -> float:
            begun, ended = (new_event(is_timed=True) for _ in range(2))
            torch.cuda.synchronize()
            begun.record()
            for _ in range(num_items):
                if loads:
                    loader.load([views["item"]])
                for _ in range(per_item):
                    torch.mm(left, left)
            ended.record()
            torch.cuda.synchronize()
            return float(begun.elapsed_time(ended)) / 1e3

        rounds = [(run(loads=True), run(loads=False)) for _ in range(num_rounds + 2)][2:]
        lost_s = statistics.median((with_loads - without) / num_items for with_loads, without in rounds)
        yield row("stall of the compute stream", "4.7 MiB", lost_s * 1e6, "µs per item", peer="20 µs", peer_value=20)


def steps(num_rounds: int) -> Iterator[Row]:
    """Yield a decode step of the service's reference model, with its caches and without."""
    require_cuda()
    with_caches = ServiceConfig(world_size=1, device="cuda:0")
    without = msgspec.structs.replace(
        with_caches, enable_prefix_caching=False, mm_processor_cache_gb=0, enable_tensor_prefix_cache=False, store_gb=0
    )
    on_s, off_s = (_step_s(config, num_rounds) for config in (with_caches, without))
    yield row("decode step, caches on", "1 request", on_s * 1e6, "µs", peer="caches off", peer_value=off_s * 1e6)


def _step_s(config: ServiceConfig, num_rounds: int) -> float:
    """Return the time of one of 256 steps of a generation, the median of several."""
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch:
        folder = Path(scratch)
        with ChildService(folder / "s", config, folder / "config.json") as service, Client(service.run_dir) as client:
            taken: list[float] = []
            for index in range(min(num_rounds, NUM_GENERATIONS) + 1):
                begun = time.perf_counter()
                made = client.generate(f"step {index} ", max_tokens=256)
                taken.append((time.perf_counter() - begun) / max(1, len(made.tokens)))
            return statistics.median(taken[1:])


def graphs(num_rounds: int) -> Iterator[Row]:
    """Yield the forward pass of a decode step of the reference model, queued call by call, and replayed."""
    device = require_cuda()
    for num_requests in (1, 16):
        queue = decode_step(device, num_requests)
        for _ in range(3):
            expected = queue().cpu()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = queue()
        graph.replay()
        if not torch.equal(captured.cpu(), expected):
            raise RuntimeError("a replayed step has other hidden states")
        off_s, _ = times_of(num_rounds, _queued, queue)
        on_s, _ = times_of(num_rounds, _queued, graph.replay)
        params = f"{num_requests} requests of {CONTEXT} tokens"
        yield row("forward, CUDA graphs on", params, on_s * 1e6, "µs", peer="off", peer_value=off_s * 1e6)


def decode_step(device: torch.device, num_requests: int) -> Callable[[], torch.Tensor]:
    """Return what queues one decode step of some requests and returns their hidden states."""
    config = ServiceConfig()
    model = ReferenceModel(config.model, max_model_len=config.max_model_len, device=device)
    num_blocks = -(-CONTEXT // config.block_size)
    pool = KVPool(
        num_layers=config.model.num_layers,
        num_blocks=1 + num_requests * num_blocks,
        block_size=config.block_size,
        hidden_size=config.model.hidden_size,
        device=device,
    )
    chunks = [
        RunChunk(
            request_id=number,
            token_ids=[number % 256],
            num_computed_tokens=CONTEXT - 1,
            block_ids=list(range(1 + number * num_blocks, 1 + (number + 1) * num_blocks)),
            spans=[],
            sample=True,
            row_keys=[],
            first_row=0,
            first_block=0,
            block_hashes=[],
        )
        for number in range(num_requests)
    ]
    batch = pack(chunks, config.block_size, device)
    embeddings = model.decoder.embed(batch.token_ids)
    return lambda: model.decoder.forward(embeddings, batch, pool)


def _queued(queue: Callable[[], object]) -> torch.cuda.Event:
    queue()
    done = new_event()
    done.record()
    return done


BOUNDS = [
    *(
        Bound("reach", f"to the device: {way}", name, PINNED, 0.9, is_floor=True)
        for way in (f"{IN_PLACE}, mapped read-only", "by a DeviceLoader")
        for name in list(SIZES)[1:]
    ),
    Bound("reach", "stall of the compute stream", "4.7 MiB", "20 µs", 1.0),
    Bound("reach", "hit", f"2 Mpx, {num_patches(2_000_000)} × {WIDTH}", "encode", 0.05),
]

SECTIONS: dict[str, harness.Section] = {
    "copies": copies,
    "registering": registering,
    "tower": tower,
    "stall": stall,
    "steps": steps,
    "graphs": graphs,
}

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    harness.main("From shared memory to a device", SECTIONS, lambda _: SECTIONS, rounds=(30, 8), bounds=BOUNDS)
