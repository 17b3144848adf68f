"""Lookups find the longest cached prefix of a request.

lookups       finds it, keeps it while the request is blocked, checks it when blocks are allocated
coordinator   the longest hit that all groups of layers agree on
"""
