"""Verification of the ring's protocol and of the KV cache manager, and what every verification by removed rules shares.

mutants      the product with one rule removed, and what it means to notice that

explore      every state of the lease protocol: `python -m scripts.verification.explore`
  explorer       the search; knows nothing of leases
  scenario       a world of a setting, explored
  self_lease_scenarios    what is explored, as it is and with one rule removed
  self_lease_world        one ring writer and its readers: self_lease_words puts the product's classes on model memory

  segment_scenarios, segment_mutants    what is explored of a store of several segments, and with one rule removed
  segment_world     one frontend (segment_jobs, segment_frontend, segment_room), writers and readers (segment_peers)
  segment_words     the words, and the product's slot table, lookup and entries on them

  weak_memory    processes that share memory through store buffers, as a world that can be explored
  replay         runs what they do one access to shared memory at a time

chaos        processes killed and stopped at random: `python -m scripts.verification.chaos`
  chaos_forker   forks the players           chaos_casts    who plays in a run, as they are and without a rule
  chaos_store    a frontend, and clients that take leases   chaos_layers  clients that lay records into nurseries
  chaos_roles    what they say to each other, and the board of words that survives them

kv_beside_vllm    our KV cache manager and vLLM's, led through the same histories: `make verify-kv`
  kv_kinds       the mixes of layers, and vLLM's classes for them

vllm_tests   vLLM's own tests with our KV cache manager: `make verify-kv-vllm`
  vllm_face      our manager with the methods of vLLM's; vllm_blocks: blocks and pool, vllm_forms: what goes in and out
  vllm_models    the folders of models that these tests name

aarch64.sh   tests of shared memory on an emulated AArch64
chromium.sh  brings a browser for the test of the service's page

The explorer and chaos need this checkout; the tests import them from here.
"""
