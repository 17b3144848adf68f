"""A server of your own that keeps the hidden states of shared prefixes: one process, no service, `prefix_rows.py`.

Its model gives one row per token, which depends on all tokens before. A prompt whose beginning is in the store computes
the rest only; what it is answered with is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from mmcached.worker import TensorPrefixStore
from mmcached.worker.hidden_states import KeySpec, RowChunk, RowSpan

BLOCK_SIZE, WIDTH, VOCABULARY = 16, 64, 256


class Model:
    """Stands for yours: a sum over the past, in whole numbers, so that every bit can be compared."""

    def __init__(self) -> None:
        self._table = torch.randint(0, 1 << 20, (VOCABULARY, WIDTH), generator=torch.Generator().manual_seed(1))

    def rows(self, token_ids: Sequence[int], first: int, before: torch.Tensor) -> torch.Tensor:
        """Return rows `first …`; `before` is the row of the token before them, what a KV cache would hold."""
        return before + self._table[list(token_ids[first:])].cumsum(dim=0)


def names_of(token_ids: Sequence[int]) -> list[bytes]:
    """Return a name for each full block: equal just where all tokens up to its end are. Your KV cache has them."""
    names, digest = [], b"model, revision, adapter, tenant"
    for end in range(BLOCK_SIZE, len(token_ids) + 1, BLOCK_SIZE):
        digest = hashlib.sha256(digest + bytes(token_ids[end - BLOCK_SIZE : end])).digest()
        names.append(digest)
    return names


def serve(
    model: Model, store: TensorPrefixStore, request_id: int, token_ids: Sequence[int]
) -> tuple[torch.Tensor, int]:
    """Return the rows of a prompt, and how many of them were computed."""
    names = names_of(token_ids)
    num_cached = store.usable_prefix(names, len(token_ids) - 1, ["hidden_states"])
    cached = torch.zeros((1, WIDTH), dtype=torch.int64)
    store.attach(request_id, names)  # what was just found is not given up for others
    if num_cached:
        with store.read([RowSpan(request_id, 0, num_cached)], ["hidden_states"]) as found:
            cached = found.get("hidden_states", 0).clone()
    own = model.rows(token_ids, num_cached, cached[-1])
    store.write([RowChunk(request_id, num_cached, len(own), 0, names)], {"hidden_states": own})
    store.commit()
    store.release([request_id])
    return (torch.cat([cached, own]) if num_cached else own), len(own)


if __name__ == "__main__":
    model = Model()
    schema = [KeySpec("hidden_states", (WIDTH,), torch.int64)]
    store = TensorPrefixStore(BLOCK_SIZE, schema, byte_budget=1 << 20)
    system = b"You are a careful assistant who looks at pictures and says what is in them. "
    num_rows = num_computed = 0
    are_equal = True
    for request_id, question in enumerate((b"What is here?", b"What is there?", b"What is here?")):
        rows, computed = serve(model, store, request_id, system + question)
        are_equal &= torch.equal(rows, model.rows(system + question, 0, torch.zeros(WIDTH, dtype=torch.int64)))
        num_rows, num_computed = num_rows + len(rows), num_computed + computed
    print(f"the rows are equal: {are_equal}")
    print(f"rows computed: {num_computed} of {num_rows}")
