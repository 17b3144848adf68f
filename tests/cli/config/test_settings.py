"""The four layers of the configuration: who overrules whom, units, and that no misspelt name passes in silence."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.cli.config.fields import SETTINGS, Setting
from mmcached.cli.config.settings import LoadedConfig, load_config
from mmcached.cli.config.units import in_unit_of
from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.errors import ConfigError

# From the lowest to the highest.
LAYERS = ("file", "environment", "command line")


def load(
    toml: str | None = None, environment: dict[str, str] | None = None, arguments: list[str] | None = None
) -> LoadedConfig:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mmcached.toml"
        file.write_text(toml or "")
        return load_config(file=file if toml else None, environment=environment or {}, arguments=arguments or [])


def load_layers(layers: dict[str, dict[str, Any]]) -> LoadedConfig:
    """Load with each layer saying, in its own spelling, what its dict from paths to values says."""
    return load(
        "\n".join(f"{path} = {json.dumps(value)}" for path, value in layers.get("file", {}).items()),
        {SETTINGS[path].variable: as_text(value) for path, value in layers.get("environment", {}).items()},
        [f"{SETTINGS[path].flag}={as_text(value)}" for path, value in layers.get("command line", {}).items()],
    )


def origin_in(layer: str, setting: Setting) -> str:
    """How the origin of a value of this layer begins; a file's goes on with its name."""
    return {
        "default": "default",
        "file": "file ",
        "environment": f"environment {setting.variable}",
        "command line": f"command line {setting.flag}",
    }[layer]


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def value_of(config: ServiceConfig, path: str) -> Any:
    found: Any = config
    for name in path.split("."):
        found = getattr(found, name)
    return found


def leaves(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every field that is no section, as (dotted path, type, default)."""
    for field in msgspec.structs.fields(struct):
        if isinstance(field.default, msgspec.Struct):
            yield from leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type, field.default


def another_value(kind: Any, default: Any) -> Any:
    """A possible value that is not the default."""
    if kind is bool:
        return not default
    if get_origin(kind) is Literal:
        return next(option for option in get_args(kind) if option != default)
    if default is None:
        return 1
    return {"auto": "cpu"}.get(default, "http://localhost:1") if kind is str else default * 2 or kind(1)


def refused(**layers: Any) -> dict[str, Any]:
    with pytest.raises(ConfigError) as caught:
        load(**layers)
    assert "\n" not in str(caught.value)
    return caught.value.details


# --- every field, every layer


@pytest.mark.parametrize(("path", "kind", "default"), list(leaves(ServiceConfig)), ids=str)
def test_every_field_can_be_set_in_every_layer(path: str, kind: Any, default: Any) -> None:
    wanted = another_value(kind, default)
    for layer in LAYERS:
        loaded = load_layers({layer: {path: wanted}})
        got = value_of(loaded.config, path)
        assert got == wanted
        assert type(got) is type(wanted)
        assert loaded.origins[path].startswith(origin_in(layer, SETTINGS[path]))
        assert [other for other, origin in loaded.origins.items() if origin != "default"] == [path]


def test_nothing_said_is_the_default() -> None:
    loaded = load()
    assert loaded.config == ServiceConfig()
    assert list(loaded.origins) == [path for path, _, _ in leaves(ServiceConfig)]
    assert set(loaded.origins.values()) == {"default"}


FIELD_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "world_size": st.integers(1, 16),
    "mm_processor_cache_gb": st.floats(0.0, 4096.0, allow_subnormal=False),
    "request_timeout_s": st.floats(0.001, 86_400.0),
    "max_image_bytes": st.integers(1, 1 << 32),
    "enable_prefix_caching": st.booleans(),
    "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
    "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    "model.seed": st.integers(-(1 << 60), 1 << 60),
    "model.encoder_layers": st.integers(1, 4096),
    "_api_process_count": st.integers(1, 4096),
}
SOME_SETTINGS = st.fixed_dictionaries({}, optional=FIELD_VALUES)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(LAYERS, SOME_SETTINGS)))
def test_each_field_is_what_the_highest_layer_says(layers: dict[str, dict[str, Any]]) -> None:
    loaded = load_layers(layers)
    for path, _, default in leaves(ServiceConfig):
        wanted, origin = default, "default"
        for layer in LAYERS:
            if path in layers.get(layer, {}):
                wanted, origin = layers[layer][path], origin_in(layer, SETTINGS[path])
        assert value_of(loaded.config, path) == wanted
        assert loaded.origins[path].startswith(origin)


def test_a_wrong_value_that_is_overruled_does_no_harm() -> None:
    assert load("world_size = 99", {"MMC_WORLD_SIZE": "many"}, ["--world-size", "1"]).config.world_size == 1


# --- files


def test_tables_and_dotted_keys_are_the_same() -> None:
    assert load("[model]\nhidden_size = 32").config == load("model.hidden_size = 32").config
    assert load("[model]\nhidden_size = 32").config.model.hidden_size == 32


@pytest.mark.parametrize("key", ["_api_process_count", "api_process_count"])
def test_the_underscore_of_a_field_may_be_left_out(key: str) -> None:
    loaded = load(f"{key} = 3")
    assert value_of(loaded.config, "_api_process_count") == 3
    assert loaded.origins["_api_process_count"].startswith("file ")
    assert "set twice" in refused(toml="_api_process_count = 3\napi_process_count = 3")["limit"]


def test_what_the_supervisor_writes_is_read_again(tmp_path: Path) -> None:
    config = ServiceConfig(world_size=3, mm_processor_cache_gb=1 / 3, _api_process_count=2)
    config.save(tmp_path / "config.json")
    loaded = load_config(file=tmp_path / "config.json", environment={}, arguments=[])
    assert loaded.config == config
    assert set(loaded.origins.values()) == {f"file {tmp_path / 'config.json'}"}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("absent.toml", None, "cannot be read"),
        ("absent.json", None, "cannot be read"),
        ("settings.yaml", b"world_size: 2", "must end in .toml or .json"),
        ("settings", b"", "must end in .toml or .json"),
        ("bad.toml", b"world_size = ", "cannot be parsed"),
        ("bad.toml", b"world_size = 2\nworld_size = 2", "cannot be parsed"),
        ("binary.toml", b"\xff\xfe\0", "cannot be parsed"),
        ("deep.toml", b"x = " + b"[" * 5000, "cannot be parsed"),
        ("long.toml", b"world_size = " + b"9" * 5000, "cannot be parsed"),
        ("bad.json", b"{", "cannot be parsed"),
        ("list.json", b"[]", "cannot be parsed"),
        ("deep.json", b'{"x": ' + b"[" * 50_000, "cannot be parsed"),
    ],
)
def test_an_unreadable_file_is_refused(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file=tmp_path / name, environment={}, arguments=[])
    assert caught.value.details["field"] == "config"
    assert reason in str(caught.value.details["limit"])


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file=tmp_path / "folder.toml", environment={}, arguments=[])


# --- units

CONVERTED: list[tuple[str, str, float]] = [
    ("mm_processor_cache_gb", "2GiB", 2.0),
    ("mm_processor_cache_gb", "512MiB", 0.5),
    ("mm_processor_cache_gb", "512 mib", 0.5),
    ("mm_processor_cache_gb", "0.25", 0.25),
    ("mm_processor_cache_gb", "1.5GiB", 1.5),
    ("mm_processor_cache_gb", "64MB", 64_000_000 / GIB),
    ("mm_processor_cache_gb", "1TiB", 1024.0),
    ("mm_processor_cache_gb", "0", 0.0),
    ("mm_shm_cache_max_object_size_mb", "2GiB", 2048),
    ("mm_shm_cache_max_object_size_mb", "65536KiB", 64),
    ("mm_shm_cache_max_object_size_mb", "32", 32),
    ("max_image_bytes", "64MiB", 64 * MIB),
    ("max_image_bytes", "64MB", 64_000_000),
    ("max_image_bytes", "1.5KiB", 1536),
    ("max_image_bytes", "100B", 100),
    ("max_image_bytes", "100", 100),
    ("request_timeout_s", "30s", 30.0),
    ("request_timeout_s", "2m", 120.0),
    ("request_timeout_s", "500ms", 0.5),
    ("request_timeout_s", "1h", 3600.0),
    ("request_timeout_s", "1.5 h", 5400.0),
    ("request_timeout_s", "7", 7.0),
    ("request_timeout_s", "1e2", 100.0),
]

IMPOSSIBLE: list[tuple[str, str, str]] = [
    ("mm_processor_cache_gb", "30s", "unknown unit s; give GiB, or 512MiB"),
    ("mm_processor_cache_gb", "2G", "unknown unit G"),
    ("mm_processor_cache_gb", "2parsecs", "unknown unit parsecs"),
    ("mm_processor_cache_gb", "GiB", "must be a number of GiB, or like 512MiB"),
    ("mm_processor_cache_gb", "two GiB", "must be a number of GiB"),
    ("mm_processor_cache_gb", "-1GiB", "must be between 0.0 and 4096.0"),
    ("mm_processor_cache_gb", "5TiB", "must be between 0.0 and 4096.0"),
    ("mm_processor_cache_gb", "nan", "must be between 0.0 and 4096.0"),
    ("mm_processor_cache_gb", "9" * 5000 + "GiB", "must be a number of GiB"),
    ("mm_processor_cache_gb", "", "must be a number of GiB"),
    ("mm_shm_cache_max_object_size_mb", "64MB", "must be a whole number of MiB"),
    ("mm_shm_cache_max_object_size_mb", "1.5", "must be a whole number of MiB"),
    ("max_image_bytes", "0.5B", "must be a whole number of bytes"),
    ("max_image_bytes", "8GiB", "must be between 1 and 4294967296"),
    ("request_timeout_s", "2GiB", "unknown unit GiB; give seconds, or 500ms"),
    ("request_timeout_s", "2M", "unknown unit M"),
    ("request_timeout_s", "2days", "unknown unit days"),
    ("request_timeout_s", "0s", "must be between 0.001 and 86400.0"),
    ("request_timeout_s", "25h", "must be between 0.001 and 86400.0"),
    ("world_size", "2GiB", "must be a whole number"),
    ("world_size", "2.5", "must be a whole number"),
    ("world_size", "two", "must be a whole number"),
    ("enable_prefix_caching", "maybe", "must be true or false"),
    ("log_level", "loud", "must be one of debug, info, warning, error"),
    ("device", "tpu", "must be auto, cpu, cuda"),
    ("http_host", "\udcff", "must be text in UTF-8"),
    ("model.hidden_size", "33", "must be a multiple of model.num_heads"),
    ("model.seed", "1.5", "must be a whole number"),
]


@pytest.mark.parametrize(("path", "text", "wanted"), CONVERTED)
def test_a_unit_is_converted_into_that_of_the_name(path: str, text: str, wanted: float) -> None:
    for layer in LAYERS:
        if layer != "file" or not text.replace(".", "").isdigit():
            got = value_of(load_layers({layer: {path: text}}).config, path)
            assert got == wanted
            assert type(got) is type(wanted)


@pytest.mark.parametrize(("path", "text", "limit"), IMPOSSIBLE)
def test_an_impossible_value_names_field_value_limit_and_layer(path: str, text: str, limit: str) -> None:
    details = refused(environment={SETTINGS[path].variable: text})
    assert details["field"] == path
    assert limit in details["limit"]
    assert details["limit"].endswith(f"(environment {SETTINGS[path].variable})")
    assert str(details["value"]) == text or limit.startswith("must be")


DEEP = ".".join(["a"] * 3000)


@pytest.mark.parametrize(
    ("toml", "path", "limit"),
    [
        ("world_size = true", "world_size", "must be a whole number"),
        ("world_size = 2.5", "world_size", "must be a whole number"),
        ("world_size = [2]", "world_size", "must be a whole number"),
        ("world_size.x = 2", "world_size", "must be a whole number"),
        ("world_size = 2020-01-01", "world_size", "must be a whole number"),
        ("world_size = 99", "world_size", "must be between 0 and 16"),
        ("device = 3", "device", "must be text"),
        ("enable_prefix_caching = 2", "enable_prefix_caching", "must be true or false"),
        ("model = 3", "model", "is a section; set model.kind"),
        ("mm_processor_cache_gb = inf", "mm_processor_cache_gb", "must be between 0.0 and 4096.0"),
        ("[model]\nhidden_size = 0", "model.hidden_size", "must be between 1 and 4096"),
        *((f"[{DEEP}]", "a", "unknown setting"), (f"[[{DEEP}]]", "a", "unknown setting")),
        (f"model.{DEEP} = 1", "model.a", "unknown setting"),
        (f"world_size.{DEEP} = 1", "world_size", "must be a whole number"),
    ],
)
def test_an_impossible_value_in_a_file(toml: str, path: str, limit: str) -> None:
    details = refused(toml=toml)
    assert details["field"] == path
    assert limit in details["limit"]
    assert "mmcached.toml)" in details["limit"]


def test_a_contradiction_with_a_default_says_which_one_it_is() -> None:
    details = refused(arguments=["--num-kv-blocks", "2"])
    assert details["field"] == "max_model_len"
    assert "the KV pool holds 16 tokens" in details["limit"]
    assert details["limit"].endswith("(default)")


@given(st.integers(0, 10**15), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_powers_of_1024_are_exact(number: int, unit: str) -> None:
    power = ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert in_unit_of("max_image_bytes", f"{number}{unit}") == number * 1024**power


@given(st.text(max_size=12) | st.integers() | st.floats() | st.booleans() | st.none())
def test_any_value_is_converted_kept_or_refused(value: object) -> None:
    try:
        converted = in_unit_of("request_timeout_s", value)
    except ConfigError:
        assert isinstance(value, str)
    else:
        assert converted is value or (isinstance(value, str) and isinstance(converted, int | float))
    assert in_unit_of("world_size", value) is value


# --- unknown names


UNKNOWN: dict[str, list[tuple[Any, str, str | None]]] = {
    "environment": [
        ({name: "7"}, name, meant)
        for name, meant in (
            ("MMC_WROLD_SIZE", "MMC_WORLD_SIZE"),
            ("MMC_world_size", "MMC_WORLD_SIZE"),
            ("MMC_MODEL_HIDDEN_SIZE", "MMC_MODEL__HIDDEN_SIZE"),
            ("MMC_MODEL__HIDEN_SIZE", "MMC_MODEL__HIDDEN_SIZE"),
            ("MMC__API_PROCESS_COUNT", "MMC_API_PROCESS_COUNT"),
            ("MMC_CRASH_ATT", None),
            ("MMC_MODEL", None),
            ("MMC_", None),
            ("MMC_DEVICE__X", "MMC_DEVICE"),
        )
    ],
    "toml": [
        ("wrold_size = 7", "wrold_size", "world_size"),
        ("world-size = 7", "world-size", "world_size"),
        ("World_Size = 7", "World_Size", "world_size"),
        ("[model]\nhiden_size = 7", "model.hiden_size", "model.hidden_size"),
        ("hidden_size = 7", "hidden_size", None),
        ("[ring]\nnum_slots = 7", "ring", None),
        ("[model.deep]\nx = 7", "model.deep", "model.seed"),
        ("MMC_CRASH_AT = 7", "MMC_CRASH_AT", None),
    ],
    "arguments": [
        (["--wrold-size", "7"], "--wrold-size", "--world-size"),
        (["--wrold-size=7"], "--wrold-size", "--world-size"),
        (["--world_size", "7"], "--world_size", "--world-size"),
        (["--model-hidden-size", "7"], "--model-hidden-size", "--model.hidden-size"),
        (["--enable-prefix-cachin"], "--enable-prefix-cachin", "--enable-prefix-caching"),
        (["--no-world-size"], "--no-world-size", "--world-size"),
        (["--worker", "7"], "--worker", "--workers"),
    ],
}
NAMES_OF_LAYERS = {"environment": "environment)", "toml": "file ", "arguments": "command line)"}


@pytest.mark.parametrize(
    ("layer", "said", "name", "meant"), [(layer, *row) for layer, rows in UNKNOWN.items() for row in rows]
)
def test_an_unknown_name_is_refused(layer: str, said: Any, name: str, meant: str | None) -> None:
    details = refused(**{layer: said})
    assert details["field"] == name
    assert details["limit"].startswith(f"unknown setting ({NAMES_OF_LAYERS[layer]}")
    assert details["value"] == "7" or layer != "environment"
    if meant:
        assert details["limit"].endswith(f"; did you mean {meant}?")


def test_variables_that_are_no_settings_are_passed_over() -> None:
    others = {"MMC_CRASH_AT": "ring.commit", "MMC_PARENT_PID": "1", "PATH": "/bin", "WORLD_SIZE": "9", "mmc_x": "1"}
    assert set(load(environment=others).origins.values()) == {"default"}
    assert load(environment=others).config == ServiceConfig()


def test_what_resembles_nothing_gets_another_advice() -> None:
    details = refused(arguments=["--xyzzy"])
    assert details["limit"] == "unknown setting (command line); `mmcached config show` lists all settings"


# --- flags


@pytest.mark.parametrize(
    ("arguments", "path", "wanted"),
    [
        (["--world-size", "3"], "world_size", 3),
        (["--world-size=3"], "world_size", 3),
        (["--workers", "3"], "world_size", 3),
        (["--model.hidden-size", "32"], "model.hidden_size", 32),
        (["--mm-processor-cache-gb", "2GiB"], "mm_processor_cache_gb", 2.0),
        (["--disable-chunked-mm-input"], "disable_chunked_mm_input", True),
        (["--disable-chunked-mm-input", "true"], "disable_chunked_mm_input", True),
        (["--disable-chunked-mm-input=false"], "disable_chunked_mm_input", False),
        (["--disable-chunked-mm-input", "--no-enable-prefix-caching"], "disable_chunked_mm_input", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--no-enable-prefix-caching", "--world-size", "3"], "world_size", 3),
        (["--enable-prefix-caching", "--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--world-size", "3", "--world-size", "4"], "world_size", 4),
        (["--model.seed", "-1"], "model.seed", -1),
        (["--http-host=--odd"], "http_host", "--odd"),
        (["--http-host="], "http_host", ""),
    ],
)
def test_flags(arguments: list[str], path: str, wanted: object) -> None:
    loaded = load(arguments=arguments)
    assert value_of(loaded.config, path) == wanted
    assert loaded.origins[path].startswith("command line --")


@pytest.mark.parametrize(
    ("arguments", "field", "limit"),
    [
        (["--world-size"], "world_size", "--world-size needs a value"),
        (["--world-size", "--device", "cpu"], "world_size", "--world-size needs a value"),
        (["--no-enable-prefix-caching=true"], "enable_prefix_caching", "--no-enable-prefix-caching takes no value"),
        (["--no-enable-prefix-caching", "true"], "argument", "belongs to no flag"),
        (["--enable-prefix-caching", "perhaps"], "enable_prefix_caching", "must be true or false"),
        (["3"], "argument", "belongs to no flag"),
        (["-w", "3"], "argument", "belongs to no flag"),
        (["--workers", "2", "--world-size", "3"], "world_size", "set by both --workers and --world-size"),
        (["--max-restarts", "-1"], "max_restarts", "must be between 0 and 1000000"),
    ],
)
def test_misused_flags(arguments: list[str], field: str, limit: str) -> None:
    details = refused(arguments=arguments)
    assert details["field"] == field
    assert limit in details["limit"]
    assert "command line" in details["limit"]


@given(st.lists(st.sampled_from(["--world-size", "--no-enable-prefix-caching", "--x", "=", "3", "-1", ""]) | st.text()))
def test_any_words_load_or_are_refused(words: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        assert load_config(file=None, environment={}, arguments=words).origins.keys() == SETTINGS.keys()


def test_workers_is_world_size_in_every_layer() -> None:
    assert load("workers = 3").config.world_size == 3
    assert load(environment={"MMC_WORKERS": "4"}).config.world_size == 4
    assert load(arguments=["--workers", "5"]).config.world_size == 5
    assert "set twice" in str(refused(toml="workers = 3\nworld_size = 3")["limit"])
    assert refused(environment={"MMC_WORKERS": "3", "MMC_WORLD_SIZE": "4"})["field"] == "world_size"
