"""The KV cache manager beside vLLM's: both play the same calls, by the same names, in one process.

    sides     how each side makes a manager, a request, a hash; the calls in between are written once
    book      a manager in a state: full of published content, with running requests
    paths     the paths that are compared, each a sampler of CPU time
    limits    what the plainest loop would take
    hits      what is found in small pools, where layers with windows have smaller blocks than others
    growth    ours alone: the cost per operation as the pool and the running requests grow
    promises  the bounds, and what cannot be played yet

Digests are drawn, not computed, wherever hashing is not the subject: a manager sees only their values.
"""
