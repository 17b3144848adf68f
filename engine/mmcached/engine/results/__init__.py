"""Results of requests are gathered step by step, and sent to the frontend.

results     tokens, rows and embeddings of unfinished requests, until they are sent in pieces or with the answer
row_parts   the rows of one key: those that came inline, and those that the store has
"""
