"""Lookups find the longest cached prefix of a request.

lookups       finds it, and checks it when blocks are allocated
memo          remembers it for requests that wait for blocks
coordinator   the longest hit that all groups of layers agree on
"""
