"""Tools of a checkout: benchmarks, verification, the launcher, the measure of the house. No part of an installation.

bench           figures beside peers and physical limits      `python -m scripts.bench.AREA`
verification    the explorer, chaos and their mutants         `python -m scripts.verification.explore`, `….chaos`
simulate_fleet  what a second level is worth              `python -m scripts.simulate_fleet`
supervisor      starts the service without an installation
house           measures the sources
"""
