"""Language model of a local checkpoint behind `generate`, computed by Transformers over the worker's KV pool.

    loading     the checkpoint's class and weights
    decoder     tokens and embeddings -> hidden states -> next tokens
    aligned     calls of the model in the mode `aligned`: one for each piece of a sequence
    packed      the call of the mode `packed`, with an attention function for Transformers' layers
    pool_cache  the cache of the mode `aligned`, for Transformers' layers: it lies in the KV pool
    sampler     logits -> the next token
    positions   positions of three axes, of models with pictures that have them
    pictures    what models take of a picture besides its embeddings
    pieces      cuts chunks into the pieces that are computed one by one

Transformers' own class computes; in the mode `aligned` only its cache is replaced, so that every architecture keeps its
own attention, masks and positions. In the mode `packed` its attention is replaced. Importing these modules imports
Transformers, which a worker does only if the model is a checkpoint.
"""
