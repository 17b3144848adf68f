"""Tests with models and processors of Transformers, made in memory with random weights: `make test-transformers`."""
