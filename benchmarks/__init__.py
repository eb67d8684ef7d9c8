"""Benchmarks: each measures this project beside its peers, in one process, alternating; `make bench` runs them all."""
