"""Lets several hosts share what their stores have: the process between a store and Redis, Valkey or Mooncake.

    backend     what is asked of such a server

The frontend orders, and never waits: what this process finds it puts like any client, what others have put it saves.
"""
