"""`mmcached bench`: what the store does on this host, beside a copy of memory and Redis.

command    what people type
figures    what is measured, and one figure
redis      a Redis server of the bench's own, and the fastest client that there can be
client     one client process: it calls as it is told, and says how long each call took
processes  runs such processes, and tells them
run        starts a store, Redis and clients, and lets all kinds of calls take turns
table      the figures on a terminal
plot       a chart with logarithmic axes, as SVG
page       the figures as one HTML page
"""
