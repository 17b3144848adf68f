"""The tensor prefix index knows which hidden states rank 0 holds, so that a KV hit is used only as far as they reach.

tensor_prefix_index   the index: what may be used, what a step will write
listed_rows           rows by block and key, as rank 0 last reported them
kept_rows             the index as the scheduler asks it
"""
