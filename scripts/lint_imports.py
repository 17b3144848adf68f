"""Runs import-linter over all four source roots: `make lint`.

import-linter looks for the package `mmcached` where its import spec says, and the spec knows the root that has
`__init__.py` alone.
"""

from importlinter.cli import lint_imports_command

import mmcached

if __name__ == "__main__":
    if mmcached.__spec__ is not None:
        mmcached.__spec__.submodule_search_locations = mmcached.__path__
    lint_imports_command()
