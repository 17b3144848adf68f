"""The frontend's side of the engines.

engine_gate    messages to and from engines, with the leases that go with them
engine_links   the engines, and how far each has come in attaching
rounds         asks all engines for all who wait, one round at a time
flushes        makes everything unreachable that is cached            probes: whether an item goes through the data path
"""
