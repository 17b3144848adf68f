"""The image's recipe and the compose file, as far as that shows without building an image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mmcached.cli.config.settings import load_config
from mmcached.cli.serve.shm_room import rings_bytes
from mmcached.wire.config import ServiceConfig
from tests.deploy.programs import BROUGHT, run
from tests.house import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
RECIPE = DEPLOY / "container" / "Containerfile"
TOOL = Path(__file__).with_name("manifests.py")
SCHEMA = BROUGHT.parent / "root/usr/lib/python3/dist-packages/compose/config/compose_spec.json"


def test_the_recipe_has_no_bad_habits() -> None:
    assert run("hadolint", "--no-color", "--failure-threshold", "style", RECIPE) == ""


def test_what_is_copied_into_the_image_is_there_and_not_ignored() -> None:
    text = RECIPE.read_text()
    copied = {name for line in re.findall(r"^COPY ([^-].*) \S+$", text, re.MULTILINE) for name in line.split()}
    ignored = RECIPE.with_name("Containerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} == {line for line in ignored if line.startswith("!")}
    assert all((REPOSITORY / name).exists() for name in copied)
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["${UID}:${UID}"]


def test_a_store_alone_is_installed_without_torch() -> None:
    stage = RECIPE.read_text().partition("AS build-store")[2].partition("AS build-service")[0]
    (extras,) = re.findall(r"'\.\[(.+)\]'", stage)
    assert extras.split(",") == ["store", "redis", "otel"]


def services(name: str) -> Any:
    """Return the services of a compose file that its schema knows."""
    text = (DEPLOY / "compose" / name).read_text()
    run("tools-python", TOOL, "compose", SCHEMA, text=text)
    (document,) = json.loads(run("tools-python", TOOL, "read", text=text))
    return document["services"]


@pytest.fixture(scope="module")
def compose() -> Any:
    return services("compose.yaml")


@pytest.fixture(scope="module")
def fleet() -> Any:
    return services("fleet.yaml")


def test_the_compose_files_say_what_their_schema_knows(compose: Any, fleet: Any) -> None:
    assert set(compose) == {"mmcached", "prometheus", "grafana", "server"}
    assert set(fleet) == {"host-a", "host-b", "valkey", "prometheus"}
    with pytest.raises(AssertionError, match="shm_sise"):
        run("tools-python", TOOL, "compose", SCHEMA, text="services: {a: {image: b, shm_sise: 1g}}")


def test_what_they_mount_and_build_is_there(compose: Any, fleet: Any) -> None:
    folder = DEPLOY / "compose"
    for service in [*compose.values(), *fleet.values()]:
        sources = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert all((folder / source).exists() for source in sources if source.startswith("."))
    for build in (compose["mmcached"]["build"], fleet["host-a"]["build"]):
        assert (folder / build["context"] / build["dockerfile"]).samefile(RECIPE)
        assert f"AS {build['target']}\n" in RECIPE.read_text()


def test_a_server_shares_user_sockets_and_memory_with_it(compose: Any) -> None:
    service, server = compose["mmcached"], compose["server"]
    assert service["ipc"] == "shareable"
    assert server["ipc"] == "service:mmcached"
    assert server["volumes"] == service["volumes"] == ["run:/run/mmcached"]
    (uid,) = re.findall(r"ARG UID=(\d+)", RECIPE.read_text())
    assert server["user"] == f"{uid}:{uid}"


def test_their_limits_hold_their_stores(compose: Any, fleet: Any) -> None:
    for service in (compose["mmcached"], fleet["host-a"], fleet["host-b"]):
        store_gb = float(service["environment"]["MMC_STORE_GB"])
        needed = rings_bytes(ServiceConfig(world_size=0, store_gb=store_gb, mm_processor_cache_gb=0))
        assert int(service["shm_size"].removesuffix("g")) << 30 >= 2 * needed
        assert int(service["mem_limit"].removesuffix("m")) << 20 >= needed + (192 << 20)


def test_two_hosts_share_nothing_but_the_second_level(fleet: Any) -> None:
    a, b = fleet["host-a"], fleet["host-b"]
    assert {key for key in a if a[key] != b[key]} == {"volumes"}
    assert set(a["volumes"]).isdisjoint(b["volumes"])
    assert a["ipc"] == "shareable"
    loaded = load_config(file=None, environment={**a["environment"], "MMC_WORLD_SIZE": "0"}, arguments=a["command"][3:])
    url = urlsplit(loaded.config.store_l2)
    assert (url.scheme, url.hostname) == ("redis", "valkey")
    assert loaded.config.http_port == 9400
    assert "ports" not in a


def test_valkey_forgets_what_is_used_least_and_its_limit_is_beyond_its_records(fleet: Any) -> None:
    words = fleet["valkey"]["command"][1:]
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--maxmemory-policy"] == "allkeys-lru"
    gib = int(options["--maxmemory"].removesuffix("gb"))
    assert int(fleet["valkey"]["mem_limit"].removesuffix("g")) > gib


def test_prometheus_asks_both_hosts(fleet: Any) -> None:
    name = next(each for each in fleet["prometheus"]["command"] if "--config.file" in each).rpartition("/")[2]
    file = DEPLOY / "prometheus" / name
    (scraped,) = json.loads(run("tools-python", TOOL, "read", text=file.read_text()))
    (job,) = scraped["scrape_configs"]
    assert job["job_name"] == "mmcached"  # the alerts look for it
    assert job["static_configs"] == [{"targets": ["host-a:9400", "host-b:9400"]}]
    assert "SUCCESS" in run("promtool", "check", "config", file)
