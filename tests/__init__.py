"""The tests mirror the source tree. A package, so that no installed `tests` can stand in for it."""
