"""Groups of layers that share a block table: one module for each kind, all with the signature of `GroupKind`.

    full_attention    all earlier tokens are needed
    sliding_window    the last few are
    group, make       the signature, and the groups of a configuration

Chunked local attention is a window whose start depends on the position; Mamba keeps one state block; cross-attention
has a table of fixed length and is never looked up. Each would be a module here and a spec in `config`.
"""

from mmcached.engine.kv.groups.group import CachedPrefix, Group
from mmcached.engine.kv.groups.make import make_groups

__all__ = ["CachedPrefix", "Group", "make_groups"]
