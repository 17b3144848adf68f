"""The recipes, held against the definitions, charts and programs of those whose deployments they extend.

Checkouts of their repositories lie in the folder that the variable UPSTREAM names, each under its repository's name;
the test of one that is not there is skipped. docs/deploy/recipes.md names their versions.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.programs import run
from tests.deploy.recipes import RECIPES, TOOL, documents, recipe, transfer_config
from tests.deploy.test_kubernetes import VERSIONS
from tests.deploy.test_recipes import assert_is_the_connector, server_of, volume_at

RUN_DIR = "/run/mmcached/service"


def upstream(path: str) -> Path:
    """Return a file or folder of a checkout; skip the test without it."""
    found = Path(os.environ.get("UPSTREAM") or "/nonexistent") / path
    return found if found.exists() else pytest.skip(f"no {path}: UPSTREAM=FOLDER names a folder with checkouts")


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("kserve/service.yaml", "kserve/config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml"),
        ("kserve/node.yaml", "kserve/config/crd/full/llmisvc/serving.kserve.io_llminferenceserviceconfigs.yaml"),
        ("kserve/sidecar.yaml", "kserve/config/crd/full/llmisvc/serving.kserve.io_llminferenceserviceconfigs.yaml"),
        ("ray-serve-llm/rayservice.yaml", "kuberay/helm-chart/kuberay-operator/crds/ray.io_rayservices.yaml"),
    ],
)
def test_the_resource_has_the_fields_of_its_definition(name: str, definition: str) -> None:
    document = recipe(name)
    run("tools-python", TOOL, "crd", upstream(definition), text=json.dumps([document]))
    misspelt = document | {"spec": document["spec"] | {"misspelt": 1}}
    with pytest.raises(AssertionError, match="misspelt"):
        run("tools-python", TOOL, "crd", upstream(definition), text=json.dumps([misspelt]))


@pytest.mark.parametrize(
    ("values", "chart"),
    [
        ("production-stack/values.yaml", "production-stack/helm"),
        ("llm-d/modelservice.yaml", "llm-d-modelservice/charts/llm-d-modelservice"),
    ],
)
def test_the_chart_makes_the_pod_of_the_values(values: str, chart: str) -> None:
    made = json.loads(run("tools-python", TOOL, "render", upstream(chart), RECIPES / values).splitlines()[-1])
    known = [each for each in made if each["apiVersion"] in ("v1", "apps/v1")]
    for version in VERSIONS:
        run("tools-python", TOOL, "check", version, text=json.dumps(known))
    (spec,) = (
        each["spec"]["template"]["spec"]
        for each in known
        if each["kind"] == "Deployment" and "mmcached" in json.dumps(each)
    )
    assert_uses_the_node(spec, server_of(spec).get("args") or server_of(spec)["command"])


def assert_uses_the_node(spec: Any, arguments: list[str]) -> None:
    server = server_of(spec)
    assert spec["securityContext"]["runAsUser"] == 10001
    assert volume_at("/run/mmcached", spec, server)["hostPath"]["path"] == "/run/mmcached"
    assert volume_at("/dev/shm", spec, server)["hostPath"]["path"] == "/dev/shm"
    assert_is_the_connector(transfer_config(arguments), RUN_DIR)


@pytest.mark.parametrize("kind", ["node", "sidecar"])
def test_kserve_merges_it_with_its_template_and_passes_the_arguments(kind: str, tmp_path: Path) -> None:
    """By kubectl's strategic merge, which is that of KServe's controller, and by the template's own script."""
    template = upstream("kserve/config/llmisvcconfig/config-llm-template.yaml").read_text()
    base, ours = (each["spec"]["template"] for each in (*documents(plain(template)), recipe(f"kserve/{kind}.yaml")))
    pod = tmp_path / "pod.json"
    pod.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": base}))
    patch = json.dumps({"spec": ours})
    merged = json.loads(run("kubectl", "patch", "--local", "-f", pod, "--type=strategic", "-p", patch, "-o", "json"))
    for version in VERSIONS:
        run("tools-python", TOOL, "check", version, text=json.dumps([merged]))
    spec = merged["spec"]
    server = server_of(spec)
    assert len({mount["mountPath"] for mount in server["volumeMounts"]}) == len(server["volumeMounts"])
    command = tmp_path / "vllm"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    shell, *words = server["command"]
    script = ["env", f"PATH={tmp_path}:{os.environ['PATH']}", "VLLM_ADDITIONAL_ARGS=--max-model-len=8192", shell]
    written = run(script[0], *script[1:], *words, *server["args"]).splitlines()
    passed = written[written.index("serve") :]
    assert "--max-model-len=8192" in passed
    if kind == "node":
        assert_uses_the_node(spec, passed)
    else:
        assert_is_the_connector(transfer_config(passed), RUN_DIR)
        (service,) = (each for each in spec["initContainers"] if each["name"] == "mmcached")
        assert volume_at("/dev/shm", spec, server) == volume_at("/dev/shm", spec, service)


def plain(template: str) -> str:
    """Return a template of KServe's controller without what it fills in."""
    without_options = re.sub(r"\{\{-? if .*?\{\{- end\}\}|\{\{-? if .*?\{\{-? ?end ?-?\}\}", "", template)
    return re.sub(r"\{\{.*?\}\}", "filled-in", without_options)
