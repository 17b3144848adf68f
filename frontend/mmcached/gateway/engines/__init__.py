"""The frontend's side of the engines; start at `engine_connections`.

listening            binds the socket for engines
engine_connections   engines: connecting, messages, readiness
routing              chooses the engine of a request
engine_content       content of an engine's caches, for routing
flushes              has all engines empty their caches
probes               tests the data path with an item
"""
