"""The `mmcached` command: `serve`, its roles, and the demo. Only the worker role and the demo's proof import torch."""


def main() -> None:
    """Run the command line; say what to install where the extra `server` is missing."""
    try:
        from mmcached.cli.app import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mmcached"):
            raise
        raise SystemExit(f"mmcached: the command needs {error.name}: pip install 'mmcached[server]'") from None
    run()


__all__ = ["main"]
