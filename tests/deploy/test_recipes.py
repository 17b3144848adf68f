"""The recipes for the deployments of others share the store's user, memory and sockets, offline.

What others' own schemas, charts and programs say about them: test_recipes_upstream.py.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from mmcached.integrations.vllm.settings import ConnectorSettings
from tests.deploy.programs import program, run
from tests.deploy.recipes import RECIPES, TOOL, documents, pod, ray_application, recipe, transfer_config
from tests.deploy.test_kubernetes import VERSIONS, bytes_of, service_of
from tests.deploy.test_kubernetes import documents as kubernetes
from tests.house import REPOSITORY

NODE = ("kserve node", "llm-d node", "llm-d chart", "production-stack")
SIDECAR = ("kserve sidecar", "llm-d sidecar", "ray")
UNIT = RECIPES / "vm" / "vllm@.service"


@pytest.fixture(params=[*NODE, *SIDECAR])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spec(name: str, tmp_path: Path) -> Any:
    return pod(name, tmp_path)


def server_of(spec: Any) -> Any:
    (server,) = spec["containers"]
    return server


def connector(name: str, spec: Any) -> dict[str, Any]:
    if name == "ray":
        return dict(ray_application(recipe("ray-serve-llm/serve.yaml"))["engine_kwargs"]["ec_transfer_config"])
    return transfer_config(server_of(spec)["args"])


def daemon_set() -> Any:
    (found,) = (each for each in kubernetes("node") if each["kind"] == "DaemonSet")
    return found["spec"]["template"]["spec"]


def assert_is_the_connector(config: dict[str, Any], run_dir: str) -> None:
    assert config.pop("ec_connector_extra_config") == {"run_dir": run_dir}
    assert config == {
        "ec_connector": "MmcachedECConnector",
        "ec_connector_module_path": "mmcached.integrations.vllm",
        "ec_role": "ec_both",
    }
    assert ConnectorSettings.of({"run_dir": run_dir}).run_dir == run_dir


def test_the_schemas_know_every_field_of_the_pod(spec: Any) -> None:
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    for version in VERSIONS:
        run("tools-python", TOOL, "check", version, text=json.dumps([whole]))


def test_the_server_loads_the_connector(name: str, spec: Any) -> None:
    assert_is_the_connector(connector(name, spec), "/run/mmcached/service")


def test_the_server_shares_user_sockets_and_memory(name: str, spec: Any) -> None:
    other = daemon_set() if name in NODE else spec
    service, server = service_of(other), server_of(spec)
    assert spec["securityContext"]["runAsUser"] == other["securityContext"]["runAsUser"]
    assert "/run/mmcached/service" in service["args"]
    for path in ("/run/mmcached", "/dev/shm"):
        volume, shared = volume_at(path, spec, server), volume_at(path, other, service)
        if name in NODE:
            assert volume["hostPath"]["path"] == shared["hostPath"]["path"]
        else:
            assert volume == shared


def volume_at(path: str, spec: Any, container: Any) -> Any:
    (mounted,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == path]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mounted]
    return volume


def test_nothing_may_do_more_than_it_must(spec: Any) -> None:
    assert not {"hostPID", "hostIPC", "hostNetwork"} & spec.keys()
    assert not any(each.get("securityContext", {}).get("privileged") for each in spec["containers"])


@pytest.mark.parametrize("name", SIDECAR, indirect=False)
def test_the_sidecar_is_the_one_of_the_plain_deployment(name: str, tmp_path: Path) -> None:
    """It is written out in each recipe; so that a change of one is a change of all."""
    (deployment,) = (each for each in kubernetes("sidecar") if each["kind"] == "Deployment")
    model, found = (service_of(each) for each in (deployment["spec"]["template"]["spec"], pod(name, tmp_path)))
    assert {key: found[key] for key in found if key != "volumeMounts"} == {
        key: model[key] for key in model if key != "volumeMounts"
    }


@pytest.mark.parametrize("name", SIDECAR, indirect=False)
def test_shared_memory_holds_two_stores(name: str, tmp_path: Path) -> None:
    spec = pod(name, tmp_path)
    service = service_of(spec)
    (store_gb,) = (float(each["value"]) for each in service["env"] if each["name"] == "MMC_STORE_GB")
    volume = volume_at("/dev/shm", spec, service)["emptyDir"]
    assert volume["medium"] == "Memory"
    assert bytes_of(volume["sizeLimit"]) >= 2 * store_gb * (1 << 30)


def test_the_rayservice_has_the_application_of_the_plain_cluster() -> None:
    manifest = recipe("ray-serve-llm/rayservice.yaml")["spec"]
    assert documents(manifest["serveConfigV2"]) == [recipe("ray-serve-llm/serve.yaml")]


def test_the_service_of_kserve_names_a_configuration() -> None:
    named = {each["name"] for each in recipe("kserve/service.yaml")["spec"]["baseRefs"]}
    assert named <= {recipe(f"kserve/{kind}.yaml")["metadata"]["name"] for kind in ("node", "sidecar")}


def test_both_components_of_llm_d_give_the_same_arguments(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    node, sidecar = (server_of(pod(f"llm-d {kind}", tmp_path / at)) for kind, at in (("node", "a"), ("sidecar", "b")))
    assert node["args"] == sidecar["args"]
    assert node["args"][:2] == ["Qwen/Qwen3.5-4B", "--tensor-parallel-size=1"]


def test_systemd_understands_the_unit_of_a_server(tmp_path: Path) -> None:
    for unit in (UNIT, REPOSITORY / "deploy" / "systemd" / "mmcached@.service"):
        text = re.sub(r"/opt/\w+/bin/\w+", "/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(text)
    (tmp_path / "vllm@0.service").symlink_to(tmp_path / UNIT.name)
    assert run("systemd-analyze", "verify", "--man=no", tmp_path / "vllm@0.service") == ""


def test_the_unit_of_a_server_uses_the_store_of_its_user() -> None:
    text = UNIT.read_text()
    (user,) = re.findall(r"^User=(\w+)$", text, re.MULTILINE)
    (command,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    assert_is_the_connector(transfer_config(shlex.split(command)), f"/run/mmcached/{user}")
    assert f"After=mmcached@{user}.service" in text
    assert f"/etc/mmcached/{user}.env" in recipe("vm/task.yaml")["setup"]


def test_the_task_runs_in_a_shell_and_installs_what_is_there() -> None:
    task = recipe("vm/task.yaml")
    for script in (task["setup"], task["run"]):
        run("bash", "-n", text=script)
    copied = re.findall(r"deploy/\S+@\.service", task["setup"])
    assert len(copied) == 2
    assert all((REPOSITORY / each).exists() for each in copied)
    (parts,) = re.findall(r"'\.\[(\w+)\]'", task["setup"])
    assert parts == "store"


def test_skypilot_reads_the_task(tmp_path: Path) -> None:
    code = "import sky, sys; task = sky.Task.from_yaml(sys.argv[1]); print(task.name, task.num_nodes, task.resources)"
    home = f"HOME={tmp_path}"
    said = run("env", home, program("sky-python"), "-c", code, RECIPES / "vm" / "task.yaml")
    assert "vllm-mmcached 1 " in said
    assert "{'H100': 2}" in said
    (tmp_path / "task.yaml").write_text("resources: {accelerator: H100}\n")
    with pytest.raises(AssertionError, match="accelerator"):
        run("env", home, program("sky-python"), "-c", code, tmp_path / "task.yaml")
