"""Tensor prefix index: the hidden states that rank 0 stores, which limit the usable part of a KV hit.

tensor_prefix_index   the index: usable prefixes, and rows that a step will write
listed_rows           rows by block and key, as rank 0 last reported them
kept_rows             the index's interface for the scheduler
"""
