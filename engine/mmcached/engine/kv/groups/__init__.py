"""Groups of layers that share a block table: one module per kind of layer, each a `GroupKind`.

    full_attention    tokens attend to all earlier tokens
    sliding_window    tokens attend to the last few tokens
    chunked_local     tokens attend to the earlier tokens of their chunk
    mamba             a state instead of KV; `MambaAlign` keeps it at the ends of chunks
    cross_attention   tokens attend to the outputs of an encoder
    windowed          what sliding windows, chunks and states have in common
    group, make       the protocols, and the groups of a configuration

Context parallelism changes the number of tokens per block (`config`), and no rule.
"""

from mmcached.engine.kv.groups.group import CachedPrefix, Group
from mmcached.engine.kv.groups.make import make_groups

__all__ = ["CachedPrefix", "Group", "make_groups"]
