"""Results of requests are gathered here, step by step.

results   tokens, rows and embeddings of unfinished requests, until they are sent in pieces or with the answer
"""
