"""Engine server: puts sockets around the scheduler, for one frontend and the workers.

server                main loop of the process
frontend_connection   connection to the frontend, and its session
frontend_messages     handles messages of the frontend
worker_group          the connected and attached workers
worker_messages       handles messages of the workers
open_requests         requests from arrival to answer
step_runner           runs one step, with its `plan` and `step_results`
step_ends             commits or withdraws a step
engine_latency        queue and step latencies
held_records          leases of requests on items and encoder outputs in the store
item_frames           frames of items sent inline, see `frame_cache`
probes                test items that pass through every worker
poisonous_requests    requests that have killed workers
cache_news            announces cached content, see `held_content`
kv_event_publisher    publishes KV events
"""
