"""What Kubernetes is given: rendered by kubectl and by Helm's own library, and held against its schemas offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmcached.cli.serve.shm_room import rings_bytes
from mmcached.wire.config import ServiceConfig
from tests.deploy.programs import run
from tests.house import REPOSITORY

TOOL = Path(__file__).with_name("manifests.py")
VERSIONS = ("1.29", "1.37")
"""The first with sidecars that start before the rest, and a new one."""
ALL_VALUES = {
    "kind": "Deployment",
    "workers": 2,
    "ringGiB": 1.5,
    "storeGiB": 0.5,
    "podMonitor": True,
    "rules": True,
    "secondLevel": {"secret": "redis", "key": "address"},
    "priorityClassName": "high",
    "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"operator": "Exists"}],
    "imagePullSecrets": [{"name": "secret"}],
}
OF_OPERATOR = ("PodMonitor", "PrometheusRule")
"""Their schemas come with the Prometheus operator."""


def documents(kind: str) -> list[Any]:
    """Return what is rendered of: sidecar, node, chart, or chart with all its values."""
    if kind.startswith("chart"):
        values = ALL_VALUES if kind == "chart with everything" else {}
        rendered = run("tools-python", TOOL, "chart", json.dumps(values))
        return list(json.loads(rendered.splitlines()[-1]))  # Helm logs that rules.yml is a link
    text = run("kubectl", "kustomize", REPOSITORY / "deploy" / "kubernetes" / kind)
    return list(json.loads(run("tools-python", TOOL, "read", text=text)))


@pytest.fixture(scope="module", params=["sidecar", "node", "chart", "chart with everything"])
def manifests(request: pytest.FixtureRequest) -> list[Any]:
    return documents(request.param)


def pod_of(manifests: list[Any]) -> Any:
    (pod,) = (each["spec"]["template"]["spec"] for each in manifests if "template" in each["spec"])
    return pod


def service_of(pod: Any) -> Any:
    (service,) = (each for each in pod["containers"] + pod.get("initContainers", []) if each["name"] == "mmcached")
    return service


def test_the_schemas_know_every_field(manifests: list[Any]) -> None:
    known = [each for each in manifests if each["kind"] not in OF_OPERATOR]
    for version in VERSIONS:
        run("tools-python", TOOL, "check", version, text=json.dumps(known))
    known[0]["spec"]["misspelt"] = True
    with pytest.raises(AssertionError, match="misspelt"):
        run("tools-python", TOOL, "check", VERSIONS[0], text=json.dumps(known))


def test_who_uses_it_shares_user_sockets_and_memory(manifests: list[Any]) -> None:
    pod = pod_of(manifests)
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"]
    service = service_of(pod)
    assert {mount["mountPath"] for mount in service["volumeMounts"]} == {"/run/mmcached", "/dev/shm"}
    for other in pod["containers"]:
        assert other["volumeMounts"] == service["volumeMounts"]
    assert "/run/mmcached/service" in service["args"]


def test_nothing_may_do_more_than_it_must(manifests: list[Any]) -> None:
    pod = pod_of(manifests)
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostIPC", "hostNetwork"} & pod.keys()
    for container in pod["containers"] + pod.get("initContainers", []):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add", []) == (["CHOWN"] if context.get("runAsUser") == 0 else [])


def test_limits_hold_the_rings_and_the_processes(manifests: list[Any]) -> None:
    pod = pod_of(manifests)
    service = service_of(pod)
    settings = {each["name"]: each["value"] for each in service["env"] if "value" in each}
    num_workers = int(settings.get("MMC_WORLD_SIZE", "0"))
    store_gb, ring_gb = float(settings["MMC_STORE_GB"]), float(settings.get("MMC_MM_PROCESSOR_CACHE_GB", "0"))
    config = ServiceConfig(world_size=num_workers, store_gb=store_gb, mm_processor_cache_gb=ring_gb)
    processes = 192 if num_workers == 0 else 512 + 512 * num_workers  # MiB, as docs/deploy/README.md counts them
    limit = bytes_of(service["resources"]["limits"]["memory"])
    assert limit >= rings_bytes(config) + (processes << 20)
    assert limit == bytes_of(service["resources"]["requests"]["memory"])
    volumes = {each["name"]: each for each in pod["volumes"]}
    if "emptyDir" in volumes["shm"]:
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert bytes_of(volumes["shm"]["emptyDir"]["sizeLimit"]) >= 2 * rings_bytes(config)


@pytest.mark.parametrize(
    ("kind", "secrets"),
    [
        ("sidecar", [{"name": "mmcached-second-level", "key": "url", "optional": True}]),
        ("node", [{"name": "mmcached-second-level", "key": "url", "optional": True}]),
        ("chart", []),
        ("chart with everything", [{"name": "redis", "key": "address"}]),
    ],
)
def test_the_second_levels_url_comes_from_a_secret(kind: str, secrets: list[Any]) -> None:
    settings = service_of(pod_of(documents(kind)))["env"]
    assert [each["valueFrom"]["secretKeyRef"] for each in settings if each["name"] == "MMC_STORE_L2"] == secrets


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) << {"Mi": 20, "Gi": 30}[quantity[-2:]]


def test_probes_ask_what_they_should(manifests: list[Any]) -> None:
    service = service_of(pod_of(manifests))
    assert {name: service[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }
    config = ServiceConfig()
    assert (
        service["startupProbe"]["failureThreshold"] * service["startupProbe"]["periodSeconds"] >= config.start_timeout_s
    )
    assert pod_of(manifests)["terminationGracePeriodSeconds"] > config.drain_timeout_s + 3 * 5


def test_one_pod_at_a_time_is_taken_away(manifests: list[Any]) -> None:
    by_kind = {each["kind"]: each["spec"] for each in manifests}
    if "DaemonSet" in by_kind:
        assert by_kind["DaemonSet"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1
    else:
        budget = by_kind["PodDisruptionBudget"]
        assert budget["selector"]["matchLabels"].items() <= by_kind["Deployment"]["selector"]["matchLabels"].items()


def test_only_who_should_reaches_the_port(manifests: list[Any]) -> None:
    policies = [each["spec"] for each in manifests if each["kind"] == "NetworkPolicy"]
    labels = next(each["spec"]["template"]["metadata"]["labels"] for each in manifests if "template" in each["spec"])
    for policy in policies:
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        assert all(rule["from"] and rule["ports"] for rule in policy["ingress"])
    assert len(policies) == ("sidecar" not in labels.values())


def test_the_chart_carries_the_alerts_and_refuses_what_it_does_not_know() -> None:
    (rule,) = (each for each in documents("chart with everything") if each["kind"] == "PrometheusRule")
    rules = (REPOSITORY / "deploy" / "prometheus" / "rules.yml").read_text()
    assert rule["spec"] == json.loads(run("tools-python", TOOL, "read", text=rules))[0]
    with pytest.raises(AssertionError, match="storeGb"):
        run("tools-python", TOOL, "chart", json.dumps({"storeGb": 4}))
