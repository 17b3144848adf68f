"""Reads deploy/recipes: the pod of each, the connector's options in it, and what others' controllers make of it."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from tests.deploy.programs import run
from tests.house import REPOSITORY

RECIPES = REPOSITORY / "deploy" / "recipes"
TOOL = Path(__file__).with_name("manifests.py")
OPTION = "--ec-transfer-config"
LLM_D_GUIDE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: decode}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      containers:
        - name: modelserver
          image: REPLACE_MODEL_SERVER_IMAGE
          command: [vllm, serve]
          args: [Qwen/Qwen3.5-4B, --tensor-parallel-size=1]
          env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: llm-d-hf-token, key: HF_TOKEN}}}]
          volumeMounts: [{mountPath: /dev/shm, name: shm}, {mountPath: /.cache, name: torch-compile-cache}]
      volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 20Gi}}, {name: torch-compile-cache, emptyDir: {}}]
"""
"""A model server as llm-d's guides have it after their own patches: names of deployment, container and volumes."""


def documents(text: str) -> list[Any]:
    return list(json.loads(run("tools-python", TOOL, "read", text=text)))


@cache
def recipe(name: str) -> Any:
    """Return the only document of a file below deploy/recipes."""
    (document,) = documents((RECIPES / name).read_text())
    return document


def llm_d(kind: str, folder: Path) -> Any:
    """Return the pod of a guide's model server with the component `kind`, as kustomize makes it in `folder`."""
    component = os.path.relpath(RECIPES / "llm-d" / kind, folder.resolve())
    base = folder / "guide"
    base.mkdir()
    (base / "deployment.yaml").write_text(LLM_D_GUIDE)
    (base / "kustomization.yaml").write_text("resources: [deployment.yaml]\nnamePrefix: guide-nvidia-gpu-vllm-\n")
    (folder / "kustomization.yaml").write_text(f"resources: [guide]\ncomponents: [{component}]\n")
    (deployment,) = documents(run("kubectl", "kustomize", folder))
    return deployment["spec"]["template"]["spec"]


def pod(name: str, folder: Path) -> Any:
    """Return what a recipe says about the pod of a model server, by the name of the recipe and its kind."""
    match name:
        case "kserve node" | "kserve sidecar":
            return recipe(f"kserve/{name.split()[1]}.yaml")["spec"]["template"]
        case "llm-d node" | "llm-d sidecar":
            return llm_d(name.split()[1], folder)
        case "llm-d chart":
            decode = recipe("llm-d/modelservice.yaml")["decode"]
            (server,) = decode["containers"]
            of_chart = {"modelCommand", "mountModelVolume", "extraConfig"}
            server = {key: server[key] for key in server.keys() - of_chart} | server["extraConfig"]
            return {**decode["extraConfig"], "containers": [server], "volumes": decode["volumes"]}
        case "production-stack":
            engine = recipe("production-stack/values.yaml")["servingEngineSpec"]
            (model,) = engine["modelSpec"]
            server = {
                "name": "vllm",
                "image": f"{model['repository']}:{model['tag']}",
                "args": model["vllmConfig"]["extraArgs"],
                "env": model["env"],
                "volumeMounts": model["extraVolumeMounts"],
            }
            return {
                "securityContext": engine["securityContext"],
                "containers": [server],
                "volumes": model["extraVolumes"],
            }
        case "ray":
            (group,) = recipe("ray-serve-llm/rayservice.yaml")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
            return group["template"]["spec"]
    raise AssertionError(name)


def ray_application(config: Any) -> dict[str, Any]:
    """Return the only LLMConfig of a configuration of Ray Serve."""
    (application,) = config["applications"]
    (model,) = application["args"]["llm_configs"]
    return dict(model)


def transfer_config(arguments: list[str]) -> dict[str, Any]:
    """Return the value of --ec-transfer-config as vLLM reads it: as JSON, or a dot and a name for each value."""
    found: dict[str, Any] = {}
    for number, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == OPTION:
            found |= json.loads(value or arguments[number + 1])
        elif name.startswith(f"{OPTION}."):
            *path, last = name.removeprefix(f"{OPTION}.").split(".")
            inner = found
            for each in path:
                inner = inner.setdefault(each, {})
            inner[last] = value
    return found
