"""The bounds on the manager's figures."""

from __future__ import annotations

from bounds import Bound
from kv_peers.hits import HIT_PARAMS, HIT_PEERS, HIT_RATE
from kv_peers.limits import PACKED_TOKENS
from kv_peers.paths import PATHS

_PACKED_LOOP_SLACK = 1.15


def _reach(path: str, times_faster: float, *, with_commit: bool = False) -> Bound:
    name = PATHS[path].name + (", with commit" if with_commit else "")
    return Bound("reach", name, PATHS[path].params, "vLLM", 1 / times_faster)


BOUNDS = (
    _reach("lookup", 10),
    _reach("cycle", 4),
    _reach("cycle", 3, with_commit=True),
    _reach("events", 8),
    _reach("decode", 10),
    _reach("decode_4", 12),
    _reach("chunked", 8),
    _reach("hashing", 1.7),
    Bound("try", PATHS["hashing"].name, PATHS["hashing"].params, PACKED_TOKENS, _PACKED_LOOP_SLACK),
    _reach("pool", 50),
    _reach("start", 50),
    _reach("blocked", 150),
    *(Bound("reach", HIT_RATE, params, peer, 1.0, is_floor=True) for params in HIT_PARAMS for peer in HIT_PEERS),
)
