"""`mmcached info`: every fact and figure of a service as `name:value`, in sections, for scripts.

    # Server
    version:0.1.0
    …
Unlike `status` it makes no judgement. Each field of a statistics record is a line, under its own name. Without a
service only the section `server` has content.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mmcached.cli.admin.printing import JsonOption, RunDirOption, directory_of, no_service, print_json, say
from mmcached.cli.installed import installed_version
from mmcached.cli.terminal_text import shown
from mmcached.wire.figures import tables
from mmcached.wire.latency import Histogram
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import StoreStats
from mmcached.wire.version import PROTOCOL_VERSION

if TYPE_CHECKING:
    from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus
    from mmcached.wire.config import ServiceConfig

Facts = dict[str, str | int | float | bool]
_LIMITS = (
    "max_image_bytes",
    "max_image_pixels",
    "max_images_per_request",
    "max_num_requests",
    "max_model_len",
    "max_object_bytes",
    "processor_cache_bytes",
)


class Section(StrEnum):
    SERVER = "server"
    CLIENTS = "clients"
    MEMORY = "memory"
    STORE = "store"
    SECOND_LEVEL = "second_level"
    PROCESSOR = "processor"
    ENCODER = "encoder"
    KV = "kv"
    ENGINES = "engines"
    NAMES = "names"


_OF_CLIENTS = ("client", "connection", "protocol")
"""Prefixes of the frontend's figures that belong to its clients."""
_LATENCIES = {"hit": Section.STORE, "put": Section.STORE, "encode": Section.ENCODER}
"""Section of each kind of work; other kinds are in the engines' section."""


def register(app: typer.Typer) -> None:
    app.command()(info)


def info(
    section: Annotated[Section | None, typer.Argument(help="Only this one.", show_default=False)] = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print all facts and figures as name:value, in sections. Exit status 3: a section needs a service, none runs."""
    from mmcached.cli.admin.observe import look_at, saved_config

    path = directory_of(run_dir)
    status = look_at(path)
    if status is None and section not in (None, Section.SERVER, Section.NAMES):
        raise no_service(path)
    facts = {Section.SERVER: server_facts(path, saved_config(path), status)}
    if status is not None:
        facts |= service_facts(status)
    if status is not None or section is Section.NAMES:
        facts[Section.NAMES] = name_facts(path)
    wanted = facts if section is None else {section: facts[section]}
    if as_json:
        print_json(wanted)
    else:
        say("\n\n".join("\n".join(_lines(each, found)) for each, found in wanted.items()))


def server_facts(path: Path, config: ServiceConfig, status: ServiceStatus | None) -> Facts:
    from mmcached.shm import WORD_STORE_NAME

    facts: Facts = {
        "version": installed_version(),
        "protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "word_store": WORD_STORE_NAME,
        "run_dir": str(path),
        "is_running": status is not None,
        "config": "saved" if RunDir(path).config.exists() else "defaults",
        "config_digest": config.digest(),
        "store_l2": config.shown().store_l2,
        **{name: getattr(config, name) for name in _LIMITS},
    }
    if status is not None:
        facts |= {
            "service_version": status.version,
            "http": status.http,
            "ready": status.ready,
            "reason": status.reason,
            "draining": status.draining,
            "uptime_s": int(status.uptime_s or 0),
        }
        for role in status.roles:
            facts[_named(role.name)] = f"pid={role.pid or ''},state={role.state},restarts={role.restarts}"
    return facts


def name_facts(path: Path) -> Facts:
    """Return the names of encoder outputs that are known here, the newest first, by what they come from."""
    from mmcached.cache.name_files import known_names

    return {name: f"host={rows['host']},batching={rows['batching']}" for name, rows in known_names(path).items()}


def service_facts(status: ServiceStatus) -> dict[Section, Facts]:
    stats = status.stats
    of_frontend = {name: value for name, value in _figures(stats) if "." not in name}
    clients: Facts = {name: value for name, value in of_frontend.items() if name.startswith(_OF_CLIENTS)}
    clients["own_clients"] = status.own_clients
    for table in tables(type(stats)):
        for key, record in sorted(getattr(stats, table.field).items()):
            clients[f"{table.by.label}_{key}"] = ",".join(f"{field}={value}" for field, value in _figures(record))
    processor: Facts = dict(_figures(stats.processor))
    processor |= {f"stored_{name}": value for name, value in _figures(stats.items)}
    kv, encoder = Counter[str](), Counter[str]()
    engines: Facts = {name: value for name, value in of_frontend.items() if name not in clients}
    for index, engine in enumerate(stats.engines):
        kv.update(dict(_figures(engine.kv)))
        encoder.update(dict(_figures(engine.encoder)))
        engines[f"engine_{index}"] = ",".join(f"{n}={value}" for n, value in _figures(engine) if "." not in n)
        for rank, worker in enumerate(engine.workers):
            engines[f"worker_{index}.{rank}"] = ",".join(f"{name}={value}" for name, value in _figures(worker))
            encoder.update(
                {f"workers_{n}": value for n, value in _figures(worker) if n.startswith(("items", "outputs"))}
            )
    found: dict[Section, Facts] = {
        Section.CLIENTS: clients,
        Section.MEMORY: memory_facts(status.roles, stats.store.ring.data_bytes),
        Section.STORE: _short(stats.store) | {name.replace(".", "_"): value for name, value in _figures(stats.store)},
        Section.SECOND_LEVEL: dict(_figures(stats.second_level)),
        Section.PROCESSOR: processor,
        Section.ENCODER: dict(encoder),
        Section.KV: dict(kv),
        Section.ENGINES: engines,
    }
    for name, latency in status.latency.items():
        section = Section.SECOND_LEVEL if name.startswith("l2_") else _LATENCIES.get(name, Section.ENGINES)
        found[section][f"latency_{name}"] = f"num={latency.num},p50_s={latency.p50_s:.6f},p99_s={latency.p99_s:.6f}"
    return found


def _short(store: StoreStats) -> Facts:
    """Return the most requested figures of a store; each also is, or follows from, a figure under its own name."""
    rate = round(store.hits / store.queries, 4) if store.queries else 0.0
    return {"hit_rate": rate, "records": store.ring.chunks, "evictions": store.ring.evictions}


def memory_facts(roles: list[RoleStatus], ring_bytes: int, proc: Path = Path("/proc")) -> Facts:
    """Return the sizes of the ring and of each process's anonymous memory."""
    facts: Facts = {"ring_bytes": ring_bytes}
    total = 0
    for role in roles:
        found = None if role.pid is None else _anonymous_bytes(proc / str(role.pid) / "status")
        if found is not None:
            facts[f"{_named(role.name)}_anonymous_bytes"] = found
            total += found
    return facts | {"anonymous_bytes": total}


def _anonymous_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
    return 1024 * kib[0] if kib else None


def _figures(record: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, int | float]]:
    """Yield each number of a record under its field's name, including nested records: `ring.chunks`."""
    for field in type(record).__struct_fields__:
        value = getattr(record, field)
        if isinstance(value, Histogram):
            continue  # shown as quantiles: `latency`
        if isinstance(value, msgspec.Struct):
            yield from _figures(value, f"{prefix}{field}.")
        elif isinstance(value, int | float):
            yield prefix + field, value


def _lines(section: Section, facts: Mapping[str, object]) -> Iterator[str]:
    yield f"# {section.capitalize()}"
    for name, value in facts.items():
        yield f"{name}:{int(value) if isinstance(value, bool) else shown(str(value))}"


def _named(role: str) -> str:
    return role.replace(" ", "_")
