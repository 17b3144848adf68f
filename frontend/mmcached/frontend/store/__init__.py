"""The store keeps records that clients put, in a ring of its own.

store_desk      serves the clients' messages
host_tier       records under a tenant and a key
computations    claims: a record that several clients lack is computed once
client_rows     the rows of the ring that clients have taken
record_sender   records on their way to clients
retried_ring    a ring that is made as soon as there is room for it
"""
