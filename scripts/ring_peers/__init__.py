"""One measurement for many transports: a writer puts tensors, reader processes say when they hold them.

    writer process                                             reader process, one per reader
    transports.open(…) ──> WriterEnd.put ──(ZeroMQ ipc)──────> ReaderEnd.serve ──> tensor, first and last element read
    pool.ReaderPool    <─────────────── when, and what was read ─────────── reader

Each transport is one module with both of its ends. A peer that cannot be imported is left out, never a dependency.
"""
