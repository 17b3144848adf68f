"""Simulates a fleet of hosts with two levels of cache: what the second level is worth, and what it has to carry.

`python -m scripts.studies.simulate_fleet [--json] [--trace FILE]`

    sessions ──► host 0 … H-1, each with a first level ──misses──► one second level ──misses──► an encoder

requests    who asks which host for which picture, and when: drawn, or derived from a recorded service
levels      plays the requests through both levels and counts; the sizes of a fleet
cases       the fleets that the page tells of, one setting varied at a time; the first level's rule beside the store's
report      table and rows

It models no time but the order of requests: an output is in both levels as soon as it was asked for. So two hosts never
encode one picture at once, which a claim in the second level prevents mostly, and nothing is late or dropped.
All records have one size. What is drawn depends on the seed alone.
"""
