"""Tests of deploy/: what it names is there, and the programs that read it take it.

Those that need a program (promtool, hadolint, Helm, …) are skipped without it; `make test-deploy` brings them all.
"""
