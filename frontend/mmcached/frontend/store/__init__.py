"""The frontend's side of the store: keeps records that clients put, in a ring of their own.

store_service   handles the clients' messages
record_store    records by tenant and key                       tenant_books: eviction order within a tenant's quota
claim_table     claims: a record that several clients lack is computed once
record_sender   sends records to clients
second_level    connection to the process that fetches and saves records
fetch_table     records to fetch, and the requests that wait    save_queue: records to save
held_claims     claims of this host among all hosts
client_figures  hits, misses and puts by client name
nurseries       allocation within nurseries, the files into which clients write large records
nursery_service opens nurseries, publishes records there, and keeps free space ready
"""
