"""Servers in all the ways in which a URL can name them: TLS, a cluster, sentinels."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from mmcached.second_level.backend import BackendError
from mmcached.second_level.records import Found
from mmcached.second_level.shared_records import SharedRecords
from tests.second_level.conftest import MakeRecords, in_time
from tests.second_level.servers import EPOCH, Server, free_ports, short_folder

NAMES = [f"{number:064x}" for number in range(24)]
RECORDS = {name: os.urandom(10_000) for name in NAMES}
SETTLES_WITHIN_S = 60.0
StartServer = Callable[..., Server]


@pytest.fixture
def start_server(program: str) -> Iterator[StartServer]:
    """Return what starts a server with options; they are killed when the test ends."""
    with ExitStack() as undo:
        folder = undo.enter_context(short_folder())
        yield lambda *options: undo.enter_context(Server(program, folder, *options))


def save_all(records: SharedRecords) -> bool:
    for name, record in RECORDS.items():
        records.save(name, [record], deadline=in_time())
    return True


def _flush(records: SharedRecords) -> bool:
    records.flush(deadline=in_time())
    return True


def num_right(records: SharedRecords) -> int:
    """Return how many records are found; fail on a wrong byte."""
    found = zip(NAMES, records.get_many(NAMES, deadline=in_time()), strict=True)
    right = [b"".join(one.pieces) == RECORDS[name] for name, one in found if isinstance(one, Found)]
    assert all(right)
    return len(right)


def until(succeeds: Callable[[], object]) -> None:
    """Repeat until something is true; errors of the second level are as good as false."""
    deadline = time.monotonic() + SETTLES_WITHIN_S
    while True:
        try:
            if succeeds():
                return
        except BackendError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate for localhost that nobody but its owner trusts."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not on this machine")
    folder = tmp_path_factory.mktemp("certificate")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-keyout", "key.pem"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-out", "cert.pem"]
    subprocess.run([openssl, "req", "-x509", *key, *name], cwd=folder, check=True, capture_output=True)
    return folder


def test_tls_is_spoken_with_who_is_trusted(
    start_server: StartServer, make_records: MakeRecords, certificate: Path
) -> None:
    (port,) = free_ports(1)
    files = ["--tls-cert-file", f"{certificate}/cert.pem", "--tls-key-file", f"{certificate}/key.pem"]
    trust = ["--tls-ca-cert-file", f"{certificate}/cert.pem"]
    start_server("--tls-port", str(port), *files, *trust)
    known = f"ssl_ca_certs={certificate}/cert.pem&ssl_certfile={certificate}/cert.pem&ssl_keyfile={certificate}/key.pem"
    records = make_records(f"rediss://localhost:{port}?{known}")
    large = bytes(range(256)) * 20_000
    records.save(NAMES[0], [large[:7], large[7:]], deadline=in_time())
    (found,) = records.get_many(NAMES[:1], deadline=in_time())
    assert isinstance(found, Found)
    assert b"".join(found.pieces) == large
    for stranger in (f"rediss://localhost:{port}", f"rediss://127.0.0.1:{port}?{known}"):
        with pytest.raises(BackendError, match="certificate verify failed"):
            num_right(make_records(stranger))
    other_name = make_records(f"rediss://127.0.0.1:{port}?{known}&ssl_check_hostname=0")
    (found,) = other_name.get_many(NAMES[:1], deadline=in_time())
    assert isinstance(found, Found)
    with pytest.raises(BackendError):
        num_right(make_records(f"redis://localhost:{port}"))


# ---- clusters


def start_cluster(start_server: StartServer, num_nodes: int) -> tuple[list[Server], list[int]]:
    """Start servers that share the slots evenly; return them and their ports when each knows it."""
    ports = free_ports(num_nodes)
    nodes = [
        start_server(
            *("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-node-timeout", "1000"),
            *("--cluster-config-file", f"{port}.conf", "--cluster-require-full-coverage", "no"),
        )
        for port in ports
    ]
    bounds = [16384 * number // num_nodes for number in range(num_nodes + 1)]
    for number, node in enumerate(nodes):
        with node.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", ports[0])
    until(lambda: all(_knows_all(node, num_nodes) for node in nodes))
    return nodes, ports


def _knows_all(node: Server, num_nodes: int) -> bool:
    with node.client() as client:
        state = client.execute_command("CLUSTER INFO")
    return bool(state["cluster_state"] == "ok" and state["cluster_size"] == str(num_nodes))


def test_a_cluster_of_one_has_records(start_server: StartServer, make_records: MakeRecords) -> None:
    _, (port,) = start_cluster(start_server, 1)
    records = make_records(f"redis://127.0.0.1:{port}?cluster=1")
    save_all(records)
    assert num_right(records) == len(NAMES)
    assert records.claim(NAMES[0], ttl_s=1.0, deadline=in_time())
    records.flush(deadline=in_time())
    assert num_right(records) == 0


def test_what_is_no_cluster_is_said(server: Server, start_server: StartServer, make_records: MakeRecords) -> None:
    (port,) = free_ports(1)
    start_server("--port", str(port), "--bind", "127.0.0.1")
    with pytest.raises(BackendError, match="cluster"):
        num_right(make_records(f"redis://127.0.0.1:{port}?cluster=1"))


@pytest.mark.soak
def test_a_cluster_that_moves_its_slots_is_followed(start_server: StartServer, make_records: MakeRecords) -> None:
    nodes, ports = start_cluster(start_server, 3)
    records = make_records(f"redis://127.0.0.1:{ports[0]}?cluster=1")
    save_all(records)
    assert num_right(records) == len(NAMES)
    for node in nodes:
        with node.client() as client:
            assert client.dbsize() > 0
    _move_all_slots(nodes, ports)
    assert num_right(records) == len(NAMES)
    save_all(records)
    victim = next(node for node in nodes[1:] if not _has(node, EPOCH))
    victim.kill()  # it has records and no replica: what it had is gone, the rest stays
    until(lambda: 0 < num_right(records) < len(NAMES))
    victim.start()
    until(lambda: save_all(records) and num_right(records) == len(NAMES))


def _has(node: Server, key: str) -> bool:
    with node.client() as client:
        slot = client.execute_command("CLUSTER KEYSLOT", key)
        return bool(client.execute_command("CLUSTER COUNTKEYSINSLOT", slot))


def _move_all_slots(nodes: list[Server], ports: list[int]) -> None:
    """Move what the first node has to the second, key by key as resharding does."""
    with nodes[0].client() as source, nodes[1].client() as target:
        source_id, target_id = (client.execute_command("CLUSTER MYID").decode() for client in (source, target))
        taken = [slot for slot in range(16384 // 3) if source.execute_command("CLUSTER COUNTKEYSINSLOT", slot)]
        for slot in taken:
            target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source_id)
            source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target_id)
            for key in source.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                source.execute_command("MIGRATE", "127.0.0.1", ports[1], key, 0, 5000)
            for client in (target, source):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", target_id)


# ---- sentinels


@pytest.mark.soak
def test_the_master_that_sentinels_name_is_followed(
    program: str, start_server: StartServer, make_records: MakeRecords, tmp_path: Path
) -> None:
    ports = free_ports(3)
    common = ("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
    master = start_server("--port", str(ports[0]), *common)
    replica = start_server("--port", str(ports[1]), *common, "--replicaof", f"127.0.0.1 {ports[0]}")
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"port {ports[2]}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {ports[0]} 1\n"
        "sentinel down-after-milliseconds main 1500\nsentinel failover-timeout main 2000\n"
    )
    until(lambda: _is_in_sync(replica))  # a sentinel promotes none of which it does not know that
    with subprocess.Popen([program, str(settings), "--sentinel"], stdout=subprocess.DEVNULL) as sentinel:
        try:
            records = make_records(f"redis+sentinel://127.0.0.1:{ports[2]}/main")
            until(lambda: save_all(records) and num_right(records) == len(NAMES))
            with redis.Redis(port=ports[2]) as client:
                until(lambda: client.sentinel_slaves("main"))
            with replica.client() as client:
                until(lambda: client.dbsize() == len(NAMES) + 1)  # the epoch, too
            master.kill()
            until(lambda: num_right(records) == len(NAMES))
            until(lambda: save_all(records) and _flush(records))
        finally:
            sentinel.kill()


def _is_in_sync(replica: Server) -> bool:
    with replica.client() as client:
        link = client.info("replication")
    return link["master_link_status"] == "up" and not link["master_sync_in_progress"]
