// How large a service has to be. Arithmetic alone: scripts/studies/sizing.py has the same lines, and a test compares them.
function sizes(n) {
  const output_mib = n.rows * n.width * n.element_bytes * n.levels / 1048576;
  const new_per_s = n.images_per_s * (1 - n.reuse);
  const kept_gib = n.images_per_s * (1 - n.reuse / 2) * n.window_s * output_mib / 1024;
  const store_gib = Math.max(0.25, 4 * output_mib / 1024, kept_gib);
  const ring_gib = Math.min(1, n.workers) * Math.max(0.25, 4 * n.item_mib / 1024, new_per_s * n.in_flight_s * n.item_mib / 1024);
  const shm_gib = 2 * (store_gib + ring_gib);
  const processes_gib = (192 + Math.min(1, n.workers) * 320 + n.workers * 512) / 1024;
  const memory_gib = store_gib + ring_gib + processes_gib;
  const second_gib = Math.max(0, Math.min(1, n.hosts - 1)) * (1.25 * n.hosts * kept_gib + 4 * n.hosts * output_mib / 1024);
  return {output_mib, new_per_s, store_gib, ring_gib, shm_gib, memory_gib, second_gib};
}

function show(form) {
  const inputs = {};
  for (const field of form.querySelectorAll("input")) inputs[field.name] = Number(field.value);
  for (const [name, value] of Object.entries(sizes(inputs))) form.elements[name].value = value.toFixed(2);
}

if (typeof document !== "undefined") {
  const form = document.getElementById("calculator");
  form.addEventListener("input", () => show(form));
  show(form);
}
