"""The engine's server puts sockets around the scheduler: one frontend on one side, the workers on the other.

server                the loop of the process
frontend_connection   the connection to the frontend, and its session
frontend_messages     takes in what the frontend says
worker_group          the workers: connected, attached, what goes to all of them
worker_messages       takes in what the workers say
open_requests         each request from its message to its answer
step_runner           one step: plan and outputs            plan, step_results
step_ends             commits a step, or withdraws it
engine_latency        how long requests wait, and steps take
held_records          leases that requests hold on items and encoder outputs in the store
item_frames           items that came inline                frame_cache
probes                test items that pass through every worker
poisonous_requests    requests that have killed workers
cache_news            tells what the caches hold            held_content
kv_event_publisher    publishes changes of the prefix cache
"""
