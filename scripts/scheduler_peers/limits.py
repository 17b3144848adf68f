"""What the plainest books would take for the same two cycles: a dict, a queue and a count; no class, no calls."""

from __future__ import annotations

from collections import OrderedDict

from benchmark import Row, row
from kv_peers.timing import Sampler, compare
from mmcached.engine.steps.request import Request
from scheduler_peers import encoder
from scheduler_peers.sides import Ours

PLAINEST = "the plainest books"


def limit_rows(num_rounds: int) -> list[Row]:
    limits = {"encoder_miss": _miss, "encoder_hit": _hit}
    return [row_ for name, limit in limits.items() for row_ in _against(encoder.PATHS[name], limit(), num_rounds)]


def _against(path: encoder.Path, limit: Sampler, num_rounds: int) -> list[Row]:
    figures = compare({"ours": path.sampler(Ours(), encoder.NUM_ENTRIES), "limit": limit}, num_rounds)
    ours, peer = figures["ours"] / 1_000, figures["limit"] / 1_000
    return [row(path.name, encoder.PARAMS, ours, encoder.UNIT, peer=PLAINEST, peer_value=peer)]


class _Plain:
    """Entries as [embeddings, references] by content, those without reference in a queue."""

    def __init__(self) -> None:
        self.hashes = [encoder.new_hash() for _ in range(encoder.NUM_ENTRIES)]
        self.entries = {mm_hash: [encoder.ITEM_EMBEDS, 0] for mm_hash in self.hashes}
        self.idle = OrderedDict.fromkeys(self.hashes)
        self.side = Ours()

    def requests(self, hashes: list[str]) -> list[Request]:
        return [self.side.request([mm_hash], encoder.ITEM_EMBEDS) for mm_hash in hashes]


def _miss() -> Sampler:
    plain = _Plain()

    def run(requests: list[Request]) -> None:
        entries, idle, num_free = plain.entries, plain.idle, 0
        held: dict[int, list[int]] = {}
        for request in requests:
            feature = request.features[0]
            mm_hash, num_embeds = feature.mm_hash, feature.num_embeds
            if mm_hash in entries:
                continue
            freed = []
            while num_embeds > num_free:
                oldest, _ = idle.popitem(last=False)
                num_free += entries.pop(oldest)[0]
                freed.append(oldest)
            entries[mm_hash] = held[request.request_id] = [num_embeds, 1]
            num_free -= num_embeds
            entry = held.pop(request.request_id)
            entry[1] -= 1
            if not entry[1]:
                idle[mm_hash] = None

    return lambda: encoder.per_item(run, plain.requests([encoder.new_hash() for _ in range(encoder.NUM_ITEMS)]))


def _hit() -> Sampler:
    plain = _Plain()

    def run(requests: list[Request]) -> None:
        entries, idle = plain.entries, plain.idle
        held: dict[int, list[int]] = {}
        for request in requests:
            mm_hash = request.features[0].mm_hash
            entry = entries[mm_hash]
            if not entry[1]:
                del idle[mm_hash]
            entry[1] += 1
            held[request.request_id] = entry
            entry = held.pop(request.request_id)
            entry[1] -= 1
            if not entry[1]:
                idle[mm_hash] = None

    return lambda: encoder.per_item(run, plain.requests(encoder.known_hashes(plain.hashes)))
