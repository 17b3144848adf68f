"""A ring of chunks with one writer and any number of readers, which lease what they read.

ring            the writer's end                     leases: who was granted what; row_watch: who lives
reader          a reader's mapping                   row, received: its leases
chunks          the state of each chunk
allocator       where the next chunk goes            places
key_index       keys that readers look up without asking
"""
