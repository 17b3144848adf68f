"""The scheduler and its encoder books beside vLLM's: both play the same calls, by the same names, in one process.

    sides     how each side makes an encoder cache manager and a request; the calls in between are written once
    encoder   the paths of the encoder cache manager: the cycle of an item that is encoded, and of one that is found
    steps     the paths of a whole step while everybody decodes: to decide it, and to book what has come back
    limits    what the plainest books would take
    growth    ours alone: the cost of a cycle as the cache grows
    overhead  ours alone: the cost of a step to the engine as more requests run, and as they get longer
    promises  the bounds

Samples are taken by `kv_peers.timing`. Another subject is another module of paths, and a line in `bench_scheduler`.
"""
