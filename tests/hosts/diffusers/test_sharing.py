"""Several processes at once, and a store that is killed: each encoder runs once, and pictures are as without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.integrations.diffusers import cached_conditioning
from tests.hosts.diffusers.references import image_to_image, picture, wan
from tests.integration.processes import DEADLINE_S, small_config

CHILD = """
import json, sys
from pathlib import Path
from mmcached.client import Client
from mmcached.integrations.diffusers import cached_conditioning
from tests.hosts.diffusers.references import image_to_image, picture
import torch
torch.set_num_threads(int(sys.argv[2]))
with Client(Path(sys.argv[1])) as client, cached_conditioning(pipeline := image_to_image(), client) as found:
    print("ready", flush=True)
    seeds = json.loads(sys.stdin.readline())
    pixels = [picture(pipeline, seed=seed).flatten().tolist() for seed in seeds]
print(json.dumps([found.num_calls, found.num_encoded, pixels]))
"""
NUM_CALLS = 3
"""Calls of encoders for a picture: the prompt, the negative prompt, the reference."""


def test_processes_at_once_encode_a_prompt_and_a_reference_once(client: Client) -> None:
    command = [sys.executable, "-c", CHILD, str(client.run_dir), str(torch.get_num_threads())]
    seeds = [[0, 1, 2], [3, 4, 5]]
    children = [subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) for _ in seeds]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child, its in zip(children, seeds, strict=True):
            assert child.stdin is not None
            child.stdin.write(json.dumps(its) + "\n")
            child.stdin.flush()
        runs = [json.loads(child.communicate(timeout=DEADLINE_S)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert [run[0] for run in runs] == [NUM_CALLS * len(its) for its in seeds]
    assert sum(run[1] for run in runs) == NUM_CALLS
    pipeline = image_to_image()
    for run, its in zip(runs, seeds, strict=True):
        assert run[2] == [picture(pipeline, seed=seed).flatten().tolist() for seed in its]


def test_a_store_killed_within_a_video_changes_nothing(run_dir: Path, tmp_path: Path) -> None:
    pipeline = wan()
    prompts = ["a cat", "a dog", "a fox"]
    wanted = [picture(pipeline, prompt) for prompt in prompts]
    process = pipeline.image_processor
    config = small_config(world_size=0)

    with ChildService(run_dir, config, tmp_path / "config.json") as service, Client(run_dir) as client:

        def kill_and_process(images: Any, **named: Any) -> Any:
            """Run between the encodes of the prompt and of the reference."""
            if service.process.poll() is None:
                os.killpg(service.process.pid, signal.SIGKILL)
                service.process.wait(DEADLINE_S)
            return process(images, **named)

        with cached_conditioning(pipeline, client) as conditioning:
            assert torch.equal(picture(pipeline, prompts[0]), wanted[0])
            pipeline.image_processor = kill_and_process
            for prompt, video in zip(prompts, wanted, strict=True):
                assert torch.equal(picture(pipeline, prompt), video)
            assert conditioning.num_bypassed == 0
    pipeline.image_processor = process
    with (
        ChildService(run_dir, config, tmp_path / "again.json"),
        Client(run_dir) as client,
        cached_conditioning(pipeline, client) as conditioning,
    ):
        assert torch.equal(picture(pipeline, prompts[0]), wanted[0])
        assert conditioning.num_encoded == 0, "a restarted store has its records"
