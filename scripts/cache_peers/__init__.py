"""What `bench_caches.py` measures, one module per subject, and vLLM's classes of the same names beside ours."""
