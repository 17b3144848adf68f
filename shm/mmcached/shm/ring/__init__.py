"""A ring of chunks with one writer and any number of readers, which lease what they read.

ring            the writer's end                     leases: who was granted what; reader_watch: who lives
reader          a reader's mapping                   reader_entry, received: its leases
chunks          the state of each chunk
allocator       where the next chunk goes            places, chain
key_index       keys that readers look up without asking
"""
