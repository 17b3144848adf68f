"""Reference model: a small causal model with an encoder for each modality, in exact integer arithmetic.

making       creates it, or the language model of a checkpoint
model        both parts, from a seed and sizes
encoder      patches of an image or a video, frames of audio -> embeddings
decoder      tokens and embeddings -> hidden states, over the KV pool
kv_pool      keys and values by slot
batch        the packed rows of one step
arithmetic   exact sums in float64
bounds       checks that no sum is too large
"""
