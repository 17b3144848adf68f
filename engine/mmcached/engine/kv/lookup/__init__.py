"""Prefix lookups: find the longest cached prefix of a request.

lookups       finds prefixes, caches the hits of blocked requests, validates hits at allocation
coordinator   the longest hit that is valid in all groups of layers
"""
