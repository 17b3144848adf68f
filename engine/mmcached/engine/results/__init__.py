"""Results of requests: gathered step by step, and sent to the frontend.

results     tokens, rows and embeddings of unfinished requests
row_parts   rows of one key: those received inline, and those in the store
"""
