"""The outside of a service: status, readiness, metrics, and the pages that show them.

service_status    the one record of it             status_table: the same for people
readiness         asks whether an item goes through the data path       readiness_watch: the same without waiting
latencies         how long things take            shown_figures: which figures people see, and under which names
overview          one screen of it: totals, and what happens now       store_readers: who holds leases
top               the same live on a terminal       top_frame: as it is drawn
metrics           the page for Prometheus
http_pages        health, metrics and status over HTTP                  http_server
overview_pages    the same screen in a browser: overview_page.html
"""
