"""The image's recipe and the compose file, as far as that shows without building an image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

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


@pytest.fixture(scope="module")
def compose() -> Any:
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    run("tools-python", TOOL, "compose", SCHEMA, text=text)
    (document,) = json.loads(run("tools-python", TOOL, "read", text=text))
    return document["services"]


def test_the_compose_file_says_what_its_schema_knows(compose: Any) -> None:
    assert set(compose) == {"mmcached", "prometheus", "grafana", "server"}
    with pytest.raises(AssertionError, match="shm_sise"):
        run("tools-python", TOOL, "compose", SCHEMA, text="services: {a: {image: b, shm_sise: 1g}}")


def test_what_it_mounts_and_builds_is_there(compose: Any) -> None:
    folder = DEPLOY / "compose"
    for service in compose.values():
        sources = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert all((folder / source).exists() for source in sources if source.startswith("."))
    build = compose["mmcached"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).samefile(RECIPE)
    assert f"AS {build['target']}\n" in RECIPE.read_text()


def test_a_server_shares_user_sockets_and_memory_with_it(compose: Any) -> None:
    service, server = compose["mmcached"], compose["server"]
    assert service["ipc"] == "shareable"
    assert server["ipc"] == "service:mmcached"
    assert server["volumes"] == service["volumes"] == ["run:/run/mmcached"]
    (uid,) = re.findall(r"ARG UID=(\d+)", RECIPE.read_text())
    assert server["user"] == f"{uid}:{uid}"


def test_its_limits_hold_the_store(compose: Any) -> None:
    service = compose["mmcached"]
    store_gb = float(service["environment"]["MMC_STORE_GB"])
    needed = rings_bytes(ServiceConfig(world_size=0, store_gb=store_gb, mm_processor_cache_gb=0))
    assert int(service["shm_size"].removesuffix("g")) << 30 >= 2 * needed
    assert int(service["mem_limit"].removesuffix("m")) << 20 >= needed + (192 << 20)
