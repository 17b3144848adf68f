"""A ring of chunks with one writer and any number of readers, which lease what they read.

ring            the writer's end                     leases: what is under lease; reader_watch: who lives
reader          a reader's mapping                   reader_entry: its leases
adoption        what a dead writer has left
chunks          the state of each chunk              allocator: where the next one goes; places, chain
departed        what was evicted a short time ago
nursery_table   the state of each record in a nursery   extents: sets of bytes
lookup          from a key to what lies there        key_index, slot_table: the words for that
onlooker        a look from outside, for people
service_layout  how large the ring of a service is
self_lease      leases that readers take without asking    touch_logs: what they have found so
"""
