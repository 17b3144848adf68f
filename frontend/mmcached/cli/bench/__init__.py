"""`mmcached bench`: measures the store on this host, in comparison with a memory copy and Redis.

command    the command line                           figures     kinds of calls, and one measurement
client     a process that makes and times calls       processes   runs such processes
redis      a Redis server, and a minimal client       run         starts all, and alternates between calls
table      tables for a terminal                      plot        a chart with logarithmic axes, as SVG
page       the measurements as one HTML page
"""
