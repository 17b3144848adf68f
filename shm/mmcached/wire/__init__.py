"""Words that two processes share. Knows nothing of tensors, caches or shared memory; imports neither torch nor numpy.

messages/    everything that one process can say to another
sockets/     typed messages over ZeroMQ, and the listener that many clients share
process/     what every role does at its start, at its end and in its loop
config       the one configuration of a service                 limits: what peers may ask of it
kv_events_config         where engines publish what their prefix caches hold
errors       every error that travels
handle       names of bytes in a ring
paths        the run directory                       closeable: the `with` statement of whatever has `close`
stats        what each part counts                      figures: which metric each count is
latency      durations by bucket                     slow_log: what took longer than an operator wants
shown_url    a URL without its password              extras: versions of packages, how to install a missing one
tracing      spans of requests, for OpenTelemetry: imported where tracing is on
row_pieces   rows of a generation that come in pieces
version, vocabulary   numbers on which both sides must agree
"""
