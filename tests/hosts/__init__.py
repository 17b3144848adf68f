"""Tests that run a host program's own code; each folder needs an environment of its own, see its make target."""
