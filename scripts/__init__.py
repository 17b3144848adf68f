"""Tools of a checkout: benchmarks, verification, the launcher, the measure of the house. No part of an installation.

bench           figures beside peers and physical limits      `python -m scripts.bench.AREA`
verification    the explorer, chaos and their mutants         `python -m scripts.verification.explore`, `….chaos`
studies         answers for a page or a decision              `python -m scripts.studies.NAME`
supervisor      starts the service without an installation
house           measures the size of each package
lint_prose      finds phrases that first sentences do not have
"""
