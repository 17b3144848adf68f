"""The bounds on the figures of scheduler and encoder books."""

from __future__ import annotations

from bounds import Bound
from scheduler_peers import steps
from scheduler_peers.encoder import PARAMS, PATHS
from scheduler_peers.limits import PLAINEST


def _reach(path: str, times_faster: float, *, with_commit: bool = False) -> Bound:
    name = PATHS[path].name + (", with commit" if with_commit else "")
    return Bound("reach", name, PARAMS, "vLLM", 1 / times_faster)


BOUNDS = (
    _reach("encoder_miss", 1.5),
    _reach("encoder_hit", 1.5),
    _reach("encoder_miss", 1.3, with_commit=True),
    _reach("encoder_hit", 1.5, with_commit=True),
    *(Bound("try", PATHS[name].name, PARAMS, PLAINEST, 2) for name in PATHS),
)

STEP_BOUNDS = (
    Bound("reach", steps.PATHS["schedule"].name, steps.PARAMS, "vLLM", 1 / 5),
    Bound("reach", steps.PATHS["commit"].name, steps.PARAMS, "vLLM", 1 / 3),
    Bound("reach", steps.TOLD, steps.PARAMS, "vLLM", 1 / 3),
)
