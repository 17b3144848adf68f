"""Results of requests are gathered step by step, and sent to the frontend.

results   tokens, rows and embeddings of unfinished requests, until they are sent in pieces or with the answer
"""
