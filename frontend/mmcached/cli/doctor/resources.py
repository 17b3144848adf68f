"""Checks of this user's limits on descriptors, locked memory and cores, and of devices."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import subprocess
import sys
from importlib.util import find_spec

from mmcached.cli.doctor.finding import CheckedHost, Finding, mib
from mmcached.wire.extras import how_to_install
from mmcached.wire.limits import RESERVED_DESCRIPTORS

TORCH_TIMEOUT_S = 120.0
_ASK_TORCH = "import torch; n = torch.cuda.device_count(); print(n, *(torch.cuda.get_device_name(i) for i in range(n)))"


def open_files(host: CheckedHost) -> Finding:
    """Check the limit of open files: the frontend has a descriptor for each client and nursery.

    Roles raise their soft limit to the hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_clients = host.config.store_max_clients
    num_nurseries = host.config.limits.max_nurseries if host.config.store_nursery_bytes else 0
    needed = num_clients + num_nurseries + RESERVED_DESCRIPTORS
    fact = f"{'no limit' if hard == resource.RLIM_INFINITY else hard} (soft {soft}, which is raised)"
    fix = f"ulimit -Hn {needed}; systemd: LimitNOFILE={needed}; docker run --ulimit nofile={needed}"
    if hard != resource.RLIM_INFINITY and hard <= 2 * RESERVED_DESCRIPTORS:
        return Finding(
            "problem", f"{fact}: a frontend keeps {RESERVED_DESCRIPTORS} free and has hardly one for clients", fix
        )
    if hard != resource.RLIM_INFINITY and hard < needed:
        return Finding("warning", f"{fact}; {num_clients} clients and {num_nurseries} nurseries need {needed}", fix)
    return Finding("ok", fact)


def locked_memory(host: CheckedHost) -> Finding:
    """Check for swap: no ring is locked, so the kernel may swap its pages out."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "no limit" if soft == resource.RLIM_INFINITY else mib(soft)
    swaps = host.read("proc/swaps").splitlines()[1:]
    fact = f"memlock {limit}; nothing of ours locks memory"
    if swaps:
        return Finding("warning", f"{fact}, and {len(swaps)} swap areas may take pages of rings", "swapoff -a")
    return Finding("ok", f"{fact}, and there is no swap")


def cores(host: CheckedHost) -> Finding:
    """Check the number of cores: frontend, engine, workers and decoders run side by side."""
    config = host.config
    allowed = float(len(os.sched_getaffinity(0)))
    quota, _, period = host.read("sys/fs/cgroup/cpu.max").partition(" ")
    given = min(allowed, int(quota) / int(period)) if quota.isdigit() and period.isdigit() else allowed
    wanted = 1 + config.num_engines * (1 + config.world_size)
    fact = (
        f"{given:g} cores for {wanted} processes and {config.processor_workers if config.has_workers else 0} decoders"
    )
    if given < 1:
        fix = "raise cpu.max of the cgroup (docker run --cpus, resources.limits.cpu)"
        return Finding("warning", f"{fact}: each step waits for the others' share", fix)
    if given < 2 and config.has_workers:
        return Finding("warning", fact, "give it two cores, or serve --workers 0 for a store alone")
    return Finding("ok", fact)


def devices(host: CheckedHost) -> Finding:
    """Check torch and devices; only with `--torch` another process loads torch, and lists the devices it sees."""
    if not host.config.has_workers:
        return Finding("ok", "a store alone needs no torch")
    if find_spec("torch") is None:
        fix = f"{how_to_install('service')}, or serve --workers 0 for a store alone"
        return Finding("problem", "torch is not installed: workers need it", fix)
    nodes = sorted(path.name for path in (host.root / "dev").glob("nvidia[0-9]*"))
    fact = f"torch {importlib.metadata.version('torch')}; NVIDIA devices: {', '.join(nodes) or 'none'}"
    if host.loads_torch:
        fact = f"{fact}; torch sees {_seen_by_torch()}"
    if host.config.device.startswith("cuda") and not nodes:
        fix = "docker run --gpus all, or nvidia.com/gpu in resources.limits; or --device cpu"
        return Finding("problem", f"{fact}; device = {host.config.device}", fix)
    return Finding("ok", fact)


def _seen_by_torch() -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, check=False, timeout=TORCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {TORCH_TIMEOUT_S:.0f} s"
    if done.returncode:
        return f"nothing: {(done.stderr.strip().splitlines() or ['it died'])[-1]}"
    number, _, names = done.stdout.strip().partition(" ")
    return f"{number} CUDA devices {names}".strip()
