"""Runs import-linter over all four source roots: `make lint`.

It asks Python where the package `mmcached` lies. Before its import Python knows the root with `__init__.py` alone; that
file adds the others.
"""

from importlinter.cli import lint_imports_command

import mmcached  # noqa: F401

if __name__ == "__main__":
    lint_imports_command()
