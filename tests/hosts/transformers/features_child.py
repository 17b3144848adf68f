"""A process that asks models for image features of the store: `python -m tests.hosts.transformers.features_child DIR`.

For each line `FAMILY DTYPE` of its input it says, as JSON, how many images its tower has encoded, and which bits the
model's logits have; at first, that it is ready. Every process makes the same models and images.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features
from mmcached.wire.process.death import arm_from_environment
from tests.hosts.transformers import models


def main(run_dir: Path) -> None:
    say(ready=True)
    for line in sys.stdin:
        family, dtype = line.split()
        model, inputs = models.make(family, getattr(torch, dtype))
        with Client(run_dir) as client, cached_image_features(model, client) as features, torch.no_grad():
            logits = model(**inputs).logits
        say(encoded=features.num_encoded, images=features.num_images, logits=name_of(logits))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def name_of(logits: torch.Tensor) -> str:
    return blake3(logits.float().numpy().tobytes()).hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


if __name__ == "__main__":
    arm_from_environment()
    with one_thread():
        main(Path(sys.argv[1]))
