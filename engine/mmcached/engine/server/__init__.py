"""The engine's server puts sockets around the scheduler: one frontend on one side, the workers on the other.

server                the loop of the process
frontend_connection   the connection to the frontend, and the engine's entry of its ring
worker_group          the workers: connected, attached, what goes to all of them
step_runner           one step: plan, outputs, commit       plan, step_results
engine_latency        how long requests wait, and steps take
leases                leases that requests hold on chunks of the ring
stored_outputs        leases that requests hold on encoder outputs in the store
item_frames           items that came inline                frame_cache
probes                test items that pass through every worker
poisonous_requests    requests that have killed workers
held_content          tells the frontend what the caches hold
kv_event_publisher    publishes changes of the prefix cache
"""
