"""A plain PyTorch server that caches what its vision tower says of each image: `vision_server.py RUN_DIR`.

Every process that does so shares the results: whoever comes first computes, the others wait for it or find it. Without
a service it still answers, by computing. The key names everything that the result depends on: model, revision, pixels.
"""

import hashlib
import sys

import torch

from mmcached.client import Client

torch.manual_seed(0)
tower = torch.nn.Sequential(torch.nn.Conv2d(3, 256, 14, stride=14), torch.nn.Flatten(2), torch.nn.GELU()).bfloat16()


@torch.no_grad()
def encode(image: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"embeds": tower(image.bfloat16()[None])[0].T}


def features(client: Client, image: torch.Tensor) -> torch.Tensor:
    key = "demo-tower@1:" + hashlib.sha256(image.numpy().tobytes()).hexdigest()
    embeds: torch.Tensor = client.get_or_compute(key, lambda: encode(image))["embeds"]
    return embeds


if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        for shade in range(8):
            answer = features(client, torch.full((3, 224, 224), float(shade)))
            print(f"image {shade}: {tuple(answer.shape)}, sum {answer.double().sum():.3f}")
        print(f"computed here: {client.store_counters().computed}")
