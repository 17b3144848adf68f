"""The frontend's side of the store: keeps records that clients put; start at `store_service`.

store_service   handles the clients' messages
record_reads    counted lookups                     record_sender: sends records to clients
put_service     puts
claim_service   claims: a record that several clients lack is computed once
claim_table     which client has which claim
record_store    records by tenant and key, epochs
ring_records    the records in the ring, by name
record_books    quotas and shares                   tenant_books: eviction order within a quota
second_level    connection to the process that fetches and saves records
fetch_table     records to fetch, and the requests that wait    save_queue: records to save
held_claims     claims of this host among all hosts
client_figures  hits, misses and puts by client name
nursery_service opens nurseries, the files into which clients write large records, and keeps free space ready
nurseries       which nursery gets memory           nursery_space: the byte ranges of one nursery
nursery_copies  copies records of nurseries into the ring
"""
