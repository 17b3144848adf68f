"""Says how large a service has to be: `python -m scripts.studies.sizing --images-per-s 20 --reuse 0.8`.

The same arithmetic as `docs/sizing.js`, line by line; a test compares them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Load:
    """What a host is asked to do.

    Attributes:
        images_per_s: images in requests, per second.
        reuse: share of them that were seen before; 0 … 1.
        window_s: after so long an image is asked for again at the latest; seconds.
        rows: embeddings of an image.
        width: numbers in an embedding.
        element_bytes: bytes of a number.
        levels: 1, and 1 more for each DeepStack level.
        item_mib: pixels of a processed image; MiB.
        in_flight_s: how long a request keeps its pixels; seconds.
        workers: of our own; 0 is a store alone, which has no ring of pixels.
        hosts: with a second level behind them; 1 has none.
    """

    images_per_s: float = 10.0
    reuse: float = 0.5
    window_s: float = 300.0
    rows: float = 2691.0
    width: float = 3584.0
    element_bytes: float = 2.0
    levels: float = 1.0
    item_mib: float = 5.9
    in_flight_s: float = 3.0
    workers: float = 0.0
    hosts: float = 1.0


def sizes(n: Load) -> dict[str, float]:
    """Return what it takes.

    Returns:
        output_mib: an image's embeddings; MiB. new_per_s: images to encode, per second. store_gib: `store_gb`.
        ring_gib: `mm_processor_cache_gb`. shm_gib: /dev/shm. memory_gib: the limit of the service's memory.
        second_gib: `maxmemory` of Redis or Valkey. All GiB.
    """
    output_mib = n.rows * n.width * n.element_bytes * n.levels / 1048576
    new_per_s = n.images_per_s * (1 - n.reuse)
    kept_gib = n.images_per_s * (1 - n.reuse / 2) * n.window_s * output_mib / 1024
    store_gib = max(0.25, 4 * output_mib / 1024, kept_gib)
    ring_gib = min(1, n.workers) * max(0.25, 4 * n.item_mib / 1024, new_per_s * n.in_flight_s * n.item_mib / 1024)
    shm_gib = 2 * (store_gib + ring_gib)
    processes_gib = (192 + min(1, n.workers) * 320 + n.workers * 512) / 1024
    memory_gib = store_gib + ring_gib + processes_gib
    second_gib = max(0, min(1, n.hosts - 1)) * (1.25 * n.hosts * kept_gib + 4 * n.hosts * output_mib / 1024)
    return {
        "output_mib": output_mib,
        "new_per_s": new_per_s,
        "store_gib": store_gib,
        "ring_gib": ring_gib,
        "shm_gib": shm_gib,
        "memory_gib": memory_gib,
        "second_gib": second_gib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for field in fields(Load):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=field.default)
    for name, value in sizes(Load(**vars(parser.parse_args()))).items():
        sys.stdout.write(f"{name:12}{value:10.2f}\n")


if __name__ == "__main__":
    main()
