"""The lease protocol as an explicit state space: the product's own classes, with a model in place of every process,
lock, word of shared memory and socket. `lease_world` draws the whole, `scenarios` and `mutants` say what is explored.

`kv_model` is the specification of the KV cache manager, plain and slow.
"""
