"""The frontend's side of the engines.

engine_connections   engines: connecting, messages, and the leases that messages carry
routing              chooses the engine of a request
rounds               asks all engines one question for all waiting clients, one round at a time
flushes              empties all caches
held_content         content of an engine's caches, for routing
probes               tests the data path with an item
"""
