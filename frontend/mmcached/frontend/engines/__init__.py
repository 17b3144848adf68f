"""The frontend's side of the engines.

engine_gate    messages to and from engines, with the leases that go with them
engine_links   the engines, and how far each has come in attaching
barriers       finds leases whose descriptors were lost
askers         gathers those who wait for the same answer of all engines
flushes, probes, statistics   questions that all engines answer
"""
