"""The frontend's side of the engines.

engine_connections   the engines: attaching, messages to them, with the leases that go with these
routing              chooses one
rounds               asks all engines for all who wait, one round at a time
flushes              makes everything unreachable that is cached
held_content         what an engine's caches hold
probes               whether an item goes through the data path
"""
