"""Messages, settings, errors and statistics that the processes share. Imports neither torch nor numpy.

messages/     all messages between processes          sockets/       typed messages over unix sockets, in ZMTP
process/      start, end and main loop of a role      config         the configuration of a service
limits        limits on what peers may request        kv_events_config   the addresses of published KV events
errors        every error between processes           handle         handles of chunks in a ring
paths         the run directory                       closeable      the `with` statement for classes with `close`
stats         the counters of each role               figures        the metrics of each counter
latency       histograms of durations                 slow_log       calls slower than `slow_log_ms`
shown_url     a URL without its password              extras         versions of packages, commands to install them
tracing       OpenTelemetry spans of requests         row_pieces     rows of a generation that arrive in pieces
version       the protocol version                    vocabulary     token ids
saved_stats   seconds that hits have saved
"""
