"""The store keeps records that clients put, in a ring of their own.

store_service   serves the clients' messages
record_store    records under a tenant and a key
claim_table     claims: a record that several clients lack is computed once
record_sender   records on their way to clients
client_figures  what clients of each name have found and put
egress_rings    the rings in which clients lay large puts
"""
