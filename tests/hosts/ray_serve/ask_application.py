"""Runs the application of deploy/recipes/ray-serve-llm on a Ray cluster of its own, asks it once, and ends both.

    python -m tests.hosts.ray_serve.ask_application MODEL RUN_DIR FOLDER < question.json > answer.json

The application is the recipe's but for the model, the run directory and what a machine without a GPU needs.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib import import_module
from typing import Any

import ray
import yaml
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app
from ray.serve.schema import ServeDeploySchema

from tests.hosts.vllm.servers import ANSWER_S, COUNTER, SMALL, free_port
from tests.house import REPOSITORY

RECIPE = REPOSITORY / "deploy" / "recipes" / "ray-serve-llm" / "serve.yaml"
OBJECT_STORE_BYTES = 100 << 20
END_S = 60


def arguments(model: str, run_dir: str) -> dict[str, Any]:
    """Return the recipe's only LLMConfig with a tiny model on a CPU."""
    deployed = ServeDeploySchema(**yaml.safe_load(RECIPE.read_text()))
    (application,) = deployed.applications
    (config,) = application.args["llm_configs"]
    LLMConfig(**config)
    config["model_loading_config"] = {"model_id": "tiny", "model_source": model}
    config["engine_kwargs"]["ec_transfer_config"]["ec_connector_extra_config"]["run_dir"] = run_dir
    small = {name.replace("-", "_"): value for name, value in SMALL.items()}
    config["engine_kwargs"] |= small | {"enforce_eager": True, "worker_extension_cls": COUNTER}
    del config["accelerator_type"]
    config |= {"accelerator_config": {"kind": "cpu"}, "placement_group_config": {"bundles": [{"CPU": 1}]}}
    config["deployment_config"] = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.5}}
    return {"llm_configs": [config]}


def main() -> None:
    model, run_dir, folder = sys.argv[1:]
    question = sys.stdin.buffer.read()
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, _temp_dir=folder)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(build_openai_app(arguments(model, run_dir)), name="llm")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions", question, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            said = json.load(answer)
    finally:
        serve.shutdown()
        psutil = import_module("psutil")
        processes = psutil.Process().children(recursive=True)
        ray.shutdown()
        _, late = psutil.wait_procs(processes, timeout=END_S)  # workers may outlive the daemon that started them
        for process in late:
            process.kill()
    json.dump(said["choices"][0]["message"]["content"], sys.stdout)


if __name__ == "__main__":
    main()
