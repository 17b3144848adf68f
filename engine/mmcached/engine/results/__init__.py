"""Results of requests are gathered here, step by step.

answers         the one answer of a request
token_streams   what a streamed generation has been sent so far
"""
