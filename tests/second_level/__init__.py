"""Tests of what several hosts share, with real servers of Redis and Valkey where the machine has them."""
