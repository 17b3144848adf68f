"""Composes a multimodal trace with identity and time, for there is none in public: `docs/traces.md`.

which item     sessions, each with one item, which it asks for at each of its turns: `simulate_fleet.requests`
               (turns geometric, mean 4; half of the sessions have an item of their own, the others one of a
               catalogue with Zipf's law, exponent 0.9)
when           the arrival times of a recorded service, from `--arrivals`: a CSV of Azure's LLM inference traces, or
               a file in the Mooncake format; else a Poisson process
what           `KINDS`: the share of each kind of item, the bytes of its record, the seconds of a miss. They are
               assumptions. Seconds vary by a factor of 1.3, log-normal

python -m scripts.studies.compose_trace --uses 12000 --arrivals conversations.jsonl > trace.jsonl
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scripts.studies.simulate_fleet.requests import Load, draw

COST_SIGMA = 0.26  # log-normal: most within a factor of 1.3


class Kind(NamedTuple):
    """One kind of item; the seconds are those of decoding, processing and encoding it once."""

    modality: str
    share: float
    nbytes: int
    cost_s: float


ROW_BYTES = 3584 * 2
KINDS = (
    Kind("image", 0.30, 256 * ROW_BYTES, 0.012),  # 448 x 448
    Kind("image", 0.35, 2691 * ROW_BYTES, 0.11),  # 1080p
    Kind("image", 0.05, 10_000 * ROW_BYTES, 0.65),  # 8 megapixels
    Kind("audio", 0.12, 750 * ROW_BYTES, 0.03),  # 30 s
    Kind("video", 0.08, 2048 * ROW_BYTES, 4.0),  # 32 frames of a film of some minutes, most of it decoding
    Kind("text", 0.10, 512 * 4096 * 4, 0.45),  # a prompt's embeddings by a T5-XXL on the CPU
)


def arrivals(path: Path) -> npt.NDArray[np.float64]:
    """Return the arrival times of a recorded service in seconds, from 0 on."""
    with path.open(encoding="utf-8", newline="") as lines:
        if path.suffix == ".csv":
            texts = [row["TIMESTAMP"][:26] for row in csv.DictReader(lines)]
            times = [datetime.fromisoformat(text).timestamp() for text in texts]
        else:
            times = [json.loads(line)["timestamp"] / 1000 for line in lines]
    found = np.sort(np.array(times, np.float64))
    return np.asarray(found - found[0])


def compose(num_uses: int, times_s: npt.NDArray[np.float64] | None, seed: int, load: Load) -> list[dict[str, object]]:
    """Return the lines of a trace of `num_uses` uses, or as many as there are arrivals."""
    rng = np.random.default_rng(seed)
    if times_s is None:
        times_s = np.cumsum(rng.exponential(1 / load.images_per_s, num_uses))
    num_uses = min(num_uses, len(times_s))
    keys = draw(load, 2 * num_uses, seed).keys[:num_uses]
    items, numbers = np.unique(keys, return_inverse=True)
    kinds = rng.choice(len(KINDS), len(items), p=[kind.share for kind in KINDS])
    factors = rng.lognormal(-(COST_SIGMA**2) / 2, COST_SIGMA, len(items))
    lines = []
    for time_s, number in zip(times_s.tolist(), numbers.tolist(), strict=False):
        kind = KINDS[kinds[number]]
        lines.append(
            {
                "t": round(time_s, 3),
                "key": f"{kind.modality}-{number}",
                "bytes": kind.nbytes,
                "cost_s": round(kind.cost_s * float(factors[number]), 4),
                "modality": kind.modality,
            }
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--uses", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arrivals", type=Path, metavar="FILE", help="arrival times of a recorded service")
    parser.add_argument("--pictures", type=int, default=100_000, help="items in the catalogue")
    parser.add_argument("--own", type=float, default=0.5, help="share of the sessions with an item of their own")
    given = parser.parse_args(arguments)
    times_s = None if given.arrivals is None else arrivals(given.arrivals)
    for line in compose(given.uses, times_s, given.seed, Load(hosts=1, pictures=given.pictures, own=given.own)):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
