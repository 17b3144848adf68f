"""`mmcached bench`: measures the store on this host, in comparison with a memory copy and Redis.

command    the command line
figures    the kinds of calls, and one measurement
redis      a Redis server for the bench, and a minimal client
client     a client process that makes calls and returns their times
processes  runs such processes
run        starts a store, Redis and clients, and alternates between all kinds of calls
table      tables for a terminal
plot       a chart with logarithmic axes, as SVG
page       the measurements as one HTML page
"""
