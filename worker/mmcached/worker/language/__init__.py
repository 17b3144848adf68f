"""Language model of a local checkpoint behind `generate`, computed by Transformers over the worker's KV pool.

    loading     the checkpoint's class and weights
    decoder     tokens and embeddings -> hidden states -> next tokens
    pool_cache  the cache that Transformers' layers write to and read from: the KV pool, by slots
    sampler     logits -> the next token
    positions   positions of three axes, of models with pictures that have them
    pictures    what models take of a picture besides its embeddings
    pieces      cuts chunks into the pieces that are computed one by one

Transformers' own class computes each sequence alone; only its cache is replaced. So every architecture keeps its own
attention, masks and positions. Importing these modules imports Transformers, which a worker does only if the model is a
checkpoint.
"""
