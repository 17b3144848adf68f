"""Lets several hosts share what their stores have: the process between a store and Redis, Valkey or Mooncake.

    backend     what is asked of such a server
    first_level the store of this host, as this process sees it
    counts      its figures

The frontend orders, and never waits: what this process finds it puts like any client, what others have put it saves.
"""
