"""Typed messages between processes, over unix sockets and ZMTP, the protocol of ZeroMQ.

frames    encodes messages as frames, and back          zmtp             the ZMTP protocol, without a socket
listener  the end with many peers                       peer_connection  one of its peers; bounds: its limits
dialer    the end with one peer                         sending          non-blocking sends with a queue
unix_sockets   named unix sockets, and the process that listens there
"""
