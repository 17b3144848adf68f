"""Status, readiness and metrics of a service, and the pages that show them.

service_status    one record of the whole service     status_table: the same as a table
readiness         a probe through the data path       readiness_watch: the same without waiting
latencies         quantiles of durations              shown_figures: the displayed figures and their names
overview          one screen: totals and rates        store_readers: the processes that hold leases
top               the screen live on a terminal       top_frame: its layout
metrics           the page for Prometheus
http_pages        health, metrics and status over HTTP                  http_server
overview_pages    the screen in a browser: overview_page.html
"""
