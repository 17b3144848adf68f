"""Verification of the ring's protocol, and what every verification by removed rules shares.

mutants      the product with one rule removed, and what it means to notice that

explore      every state of the lease protocol: `python -m scripts.verification.explore`
  explorer       the search; knows nothing of leases
  lease_scenarios, lease_mutants    what is explored, as it is and with one rule removed
  lease_world    one P0, one engine, its workers: lease_ring, lease_engine, lease_worker
  lease_between  what lies between them: messages, queues, byte locks, words
  lease_copies   copies and keys of the product's own classes

  self_lease_scenarios    what is explored of leases that readers take by themselves, and its mutants
  self_lease_world        one ring writer and its readers: self_lease_words puts the product's classes on model memory

  segment_scenarios, segment_mutants    what is explored of a store of several segments, and with one rule removed
  segment_world     one frontend (segment_jobs, segment_frontend, segment_room), writers and readers (segment_peers)
  segment_words     the words, and the product's slot table, lookup and entries on them

  weak_memory    processes that share memory through store buffers, as a world that can be explored
  replay         runs what they do one access to shared memory at a time

chaos        processes killed and stopped at random: `python -m scripts.verification.chaos`
  chaos_nursery  forks the players           chaos_casts    who plays in a run, as they are and without a rule
  chaos_players  a writer that grants leases, and its readers    chaos_store  a frontend, and clients that take them
  chaos_roles    what they say to each other, and the board of words that survives them

aarch64.sh   tests of shared memory on an emulated AArch64
chromium.sh  brings a browser for the test of the service's page

The explorer and chaos need this checkout; the tests import them from here.
"""
