"""What a service looks like from outside.

service_status    the one record of it             status_table: the same for people
readiness         asks whether an item goes through the data path       readiness_watch: the same without waiting
metrics           the page for Prometheus
http_pages        health, metrics and status over HTTP                  http_server
"""
