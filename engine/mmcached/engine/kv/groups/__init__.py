"""Groups of layers that share a block table: one module per kind of attention, each a `GroupKind`.

    full_attention    tokens attend to all earlier tokens
    sliding_window    tokens attend to the last few tokens
    group, make       the protocol, and the groups of a configuration

Chunked local attention is a window whose start depends on the position; Mamba keeps one state block; cross-attention
has a table of fixed length and no lookups. Each would be a module here and a spec in `config`.
"""

from mmcached.engine.kv.groups.group import CachedPrefix, Group
from mmcached.engine.kv.groups.make import make_groups

__all__ = ["CachedPrefix", "Group", "make_groups"]
