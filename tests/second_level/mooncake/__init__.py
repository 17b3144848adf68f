"""Tests what stands between the second level and Mooncake, with a double of Mooncake's client.

    memory_store    that double: what was put, in this process; it can be made to wait, or to fail

Real masters and clients: tests/hosts/mooncake.
"""
