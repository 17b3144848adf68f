"""The configuration: every impossible value is refused with its field, its value and its limit."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from mmcached.wire import config_checks
from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.kv_events_config import KVEventsConfig
from mmcached.wire.limits import LIMITS
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from mmcached.wire.paths import MAX_SOCKET_PATH_BYTES, RunDir
from mmcached.wire.version import PROTOCOL_VERSION, VERSION_FIELD
from tests.wire.examples import config_with

RANGES = {**config_checks.RANGES, **{name: (limit.low, limit.high) for name, limit in LIMITS.items()}}
IMPOSSIBLE: list[tuple[str, Any]] = [
    *((name, value) for name, (low, high) in RANGES.items() for value in (low - 1, high + 1)),
    ("mm_processor_cache_gb", float("nan")),
    ("store_tenant_quota_gb", float("nan")),
    ("store_l2_tenant_quota_gb", float("nan")),
    ("start_timeout_s", float("inf")),
    ("data_parallel_size", 9),
    ("device", "tpu"),
    ("device", "cuda:x"),
    ("device", "cpu:0"),
    ("kv_events.endpoint", "localhost:5557"),
    ("otlp_traces_endpoint", "grpc://localhost:4317"),
    ("otlp_traces_endpoint", "http:///v1/traces"),
    ("otlp_traces_endpoint", "http://localhost:port/v1/traces"),
    ("kv_events.replay_endpoint", "udp://*:5558"),
]


def test_what_cannot_be_is_refused_by_name() -> None:
    for field, value in IMPOSSIBLE:
        with pytest.raises(ConfigError) as caught:
            config_with(field, value)
        details = caught.value.details
        assert details["field"] == field
        assert details["value"] == value or str(details["value"]) == str(value)
        assert "must be" in str(details["limit"])


def test_an_endpoint_of_spans_has_no_password_and_shows_none() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        ServiceConfig(otlp_traces_endpoint="https://me:secret@host/v1/traces")
    assert "secret" not in str(caught.value)
    ServiceConfig(otlp_traces_endpoint="https://[::1]:4318/v1/traces")


def test_heads_divide_the_hidden_size() -> None:
    with pytest.raises(ConfigError, match="multiple"):
        ServiceConfig(model=ModelConfig(hidden_size=65, num_heads=4))


def test_the_longest_sequence_fits_the_kv_pool() -> None:
    ServiceConfig(num_kv_blocks=11, block_size=16, max_model_len=160)
    with pytest.raises(ConfigError, match="160 tokens") as caught:
        ServiceConfig(num_kv_blocks=11, block_size=16, max_model_len=161)
    assert caught.value.details["field"] == "max_model_len"


def test_kv_events_are_published_where_it_is_said_else_in_the_run_directory(run_dir: Path) -> None:
    assert not ServiceConfig().kv_events.enable_kv_cache_events
    private = KVEventsConfig().addresses(run_dir, 2)
    assert private == (f"ipc://{run_dir}/kv-pub-2.sock", f"ipc://{run_dir}/kv-rep-2.sock")
    public = KVEventsConfig(endpoint="tcp://*:5557", replay_endpoint="ipc:///there")
    assert public.addresses(run_dir) == ("tcp://*:5557", "ipc:///there")


def test_engines_have_endpoints_of_their_own(run_dir: Path) -> None:
    config = KVEventsConfig(endpoint="tcp://*:5557", replay_endpoint="ipc:///there")
    assert config.addresses(run_dir, 2) == ("tcp://*:5559", "ipc:///there.2")
    of_any_port = KVEventsConfig(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:0")
    assert of_any_port.addresses(run_dir, 2) == ("tcp://127.0.0.1:*", "tcp://127.0.0.1:0")


@pytest.mark.parametrize(
    ("endpoint", "replay_endpoint", "field"),
    [
        ("tcp://*:5557", "tcp://*:5558", "kv_events.replay_endpoint"),
        ("tcp://*:65535", "", "kv_events.endpoint"),
        ("ipc:///one", "ipc:///one", "kv_events.replay_endpoint"),
    ],
)
def test_endpoints_of_two_engines_that_cannot_be(endpoint: str, replay_endpoint: str, field: str) -> None:
    events = KVEventsConfig(enable_kv_cache_events=True, endpoint=endpoint, replay_endpoint=replay_endpoint)
    with pytest.raises(ConfigError, match=r"engine [01]") as refused:
        ServiceConfig(data_parallel_size=2, kv_events=events)
    assert refused.value.details["field"] == field
    ServiceConfig(data_parallel_size=1, kv_events=KVEventsConfig(endpoint=endpoint, replay_endpoint=replay_endpoint))


def test_a_balancer_outside_gives_each_engine_a_service() -> None:
    assert ServiceConfig(data_parallel_size=4).num_engines == 4
    assert ServiceConfig(data_parallel_size=400, data_parallel_external_lb=True).num_engines == 1
    assert ServiceConfig(data_parallel_size=4, world_size=0).num_engines == 0


def test_the_longest_run_directory_has_room_for_the_sockets_of_kv_events() -> None:
    folder = Path("/" + "r" * (MAX_SOCKET_PATH_BYTES - len("/workers-999.sock") - 1))
    for address in KVEventsConfig().addresses(RunDir(folder).path, 999):
        assert len(address.removeprefix("ipc://")) <= MAX_SOCKET_PATH_BYTES


def test_a_store_has_quotas_only_where_they_are_set() -> None:
    config = ServiceConfig(store_gb=1.0)
    assert (config.store_data_bytes, config.store_max_object_bytes) == (GIB, GIB // 4)
    assert (config.store_client_quota_bytes, config.store_tenant_quota_bytes) == (GIB // 4, None)
    assert config.store_l2_tenant_quota_bytes is None
    assert ServiceConfig(store_l2_tenant_quota_gb=0.5).store_l2_tenant_quota_bytes == GIB // 2
    config = ServiceConfig(
        store_gb=8 * MIB / GIB, store_max_object_mb=64, store_client_quota_gb=0.5, store_tenant_quota_gb=2.0
    )
    assert config.store_max_object_bytes == 8 * MIB
    assert (config.store_client_quota_bytes, config.store_tenant_quota_bytes) == (GIB // 2, 2 * GIB)
    assert ServiceConfig(store_gb=0).store_data_bytes == 0


def test_without_workers_there_is_only_a_store() -> None:
    config = ServiceConfig(world_size=0)
    assert not config.has_workers
    assert config.processor_cache_bytes == config.ring_data_bytes == config.max_object_bytes == 0
    assert config.store_data_bytes == ServiceConfig().store_data_bytes
    with pytest.raises(ConfigError, match="only a store") as caught:
        ServiceConfig(world_size=0, store_gb=0.0)
    assert (caught.value.details["field"], caught.value.details["value"]) == ("store_gb", 0.0)
    for encoder, field in (
        (EncoderConfig(kind="hf", path="/nowhere"), "encoder.kind"),
        (EncoderConfig(ray_address="auto"), "encoder.ray_address"),
    ):
        with pytest.raises(ConfigError, match="only a store") as caught:
            ServiceConfig(world_size=0, encoder=encoder)
        assert caught.value.details["field"] == field


def test_tiles_are_cached_where_workers_encode_them() -> None:
    with pytest.raises(ConfigError, match="must be false") as caught:
        ServiceConfig(encoder=EncoderConfig(kind="hf", caches_tiles=True, ray_address="auto"))
    assert (caught.value.details["field"], caught.value.details["value"]) == ("encoder.caches_tiles", True)


def test_file_round_trip(run_dir: Path) -> None:
    config = ServiceConfig(world_size=3, mm_processor_cache_gb=0.5, model=ModelConfig(seed=7), device="cpu")
    path = run_dir / "config.json"
    config.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ServiceConfig.load(path) == config
    assert ServiceConfig.load(path).digest() == config.digest()


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        ({"world_sise": 2}, "world_sise"),
        ({"model": {"layers": 2}}, "layers"),
        ({"world_size": "2"}, "world_size"),
        ({"world_size": 2.5}, "world_size"),
        ({"mm_processor_cache_type": "disk"}, "mm_processor_cache_type"),
        ({"encoder_cache_scope": "galaxy"}, "encoder_cache_scope"),
        ([], "object"),
    ],
)
def test_a_file_with_what_we_do_not_know_is_refused(run_dir: Path, content: Any, mentions: str) -> None:
    path = run_dir / "config.json"
    content = {VERSION_FIELD: PROTOCOL_VERSION, **content} if isinstance(content, dict) else content
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=mentions):
        ServiceConfig.load(path)


def test_a_file_with_an_impossible_value_names_its_field(run_dir: Path) -> None:
    path = run_dir / "config.json"
    path.write_text(json.dumps({VERSION_FIELD: PROTOCOL_VERSION, "world_size": 99}))
    with pytest.raises(ConfigError) as caught:
        ServiceConfig.load(path)
    assert caught.value.details == {"field": "world_size", "value": 99, "limit": "must be between 0 and 16"}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"world_size": 2', b'{"a": ' * 5000])
def test_a_file_that_is_no_json(run_dir: Path, content: bytes) -> None:
    path = run_dir / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        ServiceConfig.load(path)
    assert caught.value.details["value"] == str(path)


def test_a_file_that_is_missing(run_dir: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ServiceConfig.load(run_dir / "config.json")
