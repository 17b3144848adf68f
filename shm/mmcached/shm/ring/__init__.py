"""A ring of chunks with one writer and any number of readers, which take leases on the chunks that they read.

ring            the writer; its parts: current_records, ring_readers, ring_settings
leases          leased slots                         reader_watch: living readers
reader          a reader's mapping                   reader_entry: a reader's leases
adoption        takes over the ring of a dead writer
chunks          the state of each chunk              allocator: places and evicts chunks; places, chain
departed        keys that were evicted recently
nursery_table   the state of each record in a nursery (a client's shared-memory file)   extents: sets of bytes
lookup          from a key or handle to a record     key_index, slot_table: the words for that
onlooker        inspects a ring from outside, for diagnosis
service_layout  the size of a service's ring
self_lease      leases that readers take without a message     touch_logs: the hits that they count
"""
