"""Cross-attention of an encoder-decoder model: a table of the encoder's outputs, of fixed length once they are known.

The blocks are allocated with the request's first step after the encoder, and freed with the request. They are not
shared: a decoder's KV depends on the encoder's outputs, so prefix caching is off in such models.

>>> kind, growth = CrossAttention(16), Growth(4, 4, 0, 1500, is_new=True)
>>> kind.num_new_blocks([], growth), kind.num_new_blocks([0] * 94, growth._replace(num_encoder_tokens=0))
(94, 0)
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.kv.groups.full_attention import FullAttention
from mmcached.engine.kv.groups.group import Growth


class CrossAttention(FullAttention):
    """Cross-attention; nothing is left behind, as in full attention, and nothing is looked up."""

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        return 0  # all of them are taken at admission, or at the step after the encoder

    def num_new_blocks(self, table: Sequence[int], growth: Growth) -> int:
        return max(0, -(-growth.num_encoder_tokens // self.block_size) - len(table))

    def extend_table(self, table: list[int], growth: Growth, block_ids: list[int]) -> None:
        table += block_ids
