"""The store keeps records that clients put, in a ring of their own.

store_service   serves the clients' messages
record_store    records under a tenant and a key               tenant_books: what a tenant's quota takes first
claim_table     claims: a record that several clients lack is computed once
record_sender   records on their way to clients
second_level    the process that fetches and saves records beside this one
fetch_table     what it is to fetch, and who waits for that        save_queue: what it is to save
held_claims     what this host computes for all hosts
client_figures  what clients of each name have found and put
nurseries       whose room is whose, in the files in which clients lay large records
nursery_service opens those files, publishes what lies there, and keeps room ready
"""
