"""Recorded requests for items, and what a store of some size finds of them: `mmcached replay` and `mmcached size`.

file ──readers──> UseTrace ──┬─ playing ──────> a real store: records of the recorded sizes, at the recorded times
                             └─ simulation ───> the store's own rules without payloads, for one size or many
"""
