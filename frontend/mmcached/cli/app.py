"""The commands for people, with settings as flags; each command's work is in a module of its own.

Processes that the supervisor starts are in `role`.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mmcached.cli.admin import info, store_verbs, verbs, verify
from mmcached.cli.admin.printing import DEFAULT_RUN_DIR
from mmcached.cli.bench.command import bench
from mmcached.cli.config import show as config_show
from mmcached.cli.config.completion import SettingsCommand
from mmcached.cli.config.show import TAKES_SETTINGS, ConfigOption, load
from mmcached.cli.doctor.command import doctor
from mmcached.cli.exit_status import NEGATIVE, OK, status_of
from mmcached.cli.installed import check_packages, installed_version
from mmcached.cli.ray import command as ray_command
from mmcached.cli.terminal_text import shown
from mmcached.cli.traces import command as traces_command
from mmcached.wire.errors import InvalidRequest, MmcachedError, ServiceUnavailable
from mmcached.wire.paths import default_run_dir
from mmcached.wire.process.descriptors import raise_descriptor_limit
from mmcached.wire.process.signals import StopFlag

app = typer.Typer(
    name="mmcached",
    help="Caching for multimodal model serving: process once, ship once, encode once, compute a prefix once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)

RunDirOption = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        help=f"Directory of the service's sockets and locks (short path, mode 0700); {DEFAULT_RUN_DIR}.",
        readable=False,
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option("--workers", metavar="N", help="Worker processes (the same as --world-size); 0: only a store."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:<index>.")
]

EVERY_FIELD = (
    "Every configuration field is a flag too: --mm-processor-cache-gb 2GiB, --drain-timeout-s 30s, "
    "--model.hidden-size 32, --http-port 9400. `mmcached config show` lists all of them. A flag overrides "
    "the environment (MMC_WORLD_SIZE=4, MMC_MODEL__HIDDEN_SIZE=32), which overrides the file."
)


@app.command(cls=SettingsCommand, context_settings=TAKES_SETTINGS, epilog=EVERY_FIELD)
def serve(
    context: typer.Context,
    *,
    run_dir: RunDirOption = None,
    config: ConfigOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only errors on stderr, and the line when ready.")] = False,
) -> None:
    """Start a service, or only a store.

    Runs frontend, engine and workers; reports start, readiness and end. SIGTERM drains.
    """
    stop = StopFlag()  # first, because the imports take long
    from mmcached.cache.checkpoints.checkpoint import check_encoder
    from mmcached.cache.checkpoints.language import check_model
    from mmcached.cli.logs.lines import set_up_logging
    from mmcached.cli.progress import announce, announcing, working
    from mmcached.cli.serve.service_manager import ServiceManager
    from mmcached.cli.serve.shm_room import fitted, host_without
    from mmcached.cli.serve.supervisor import Supervisor

    loaded = load(context, config, _as_arguments(workers, device))
    home = run_dir or default_run_dir()
    check_packages(loaded.config)
    check_encoder(loaded.config)
    check_model(loaded.config)
    if loaded.config.store_l2:
        from mmcached.second_level.urls import check_installed

        check_installed(loaded.config.store_l2)
    chosen, note = fitted(loaded.config, loaded.origins, host_without(home))
    set_up_logging("supervisor", chosen)
    raise_descriptor_limit()
    if note:
        _tell(note)
    manager = ServiceManager.from_environment()
    shown_start = working if quiet else announcing
    try:
        with Supervisor(home, chosen, stop=stop, working=shown_start, manager=manager) as supervisor:
            status = supervisor.run()
    except ServiceUnavailable as error:  # it did not become ready, or could not go on
        _report(error)
        raise typer.Exit(NEGATIVE) from None
    if supervisor.summary and not quiet:
        announce(f"ended after {supervisor.summary}")
    raise typer.Exit(status)


@app.command(cls=SettingsCommand, context_settings=TAKES_SETTINGS, epilog=EVERY_FIELD)
def demo(
    context: typer.Context,
    *,
    images: Annotated[Path | None, typer.Option("--images", help="Your own photographs: a directory.")] = None,
    users: Annotated[int, typer.Option("--users", min=1, max=64, help="Concurrent conversations.")] = 4,
    encoder: Annotated[
        Path | None, typer.Option("--encoder", help="Only encode, twice, with your own checkpoint: a directory.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="The same with your own vision-language checkpoint: a directory.")
    ] = None,
    turns: Annotated[int, typer.Option("--turns", min=1, max=32, help="Turns of each conversation.")] = 4,
    vllm: Annotated[
        bool,
        typer.Option("--vllm", help="Only two vLLM servers beside a store: the time to the first token of a picture."),
    ] = False,
    vllm_model: Annotated[
        str | None,
        typer.Option(
            "--vllm-model",
            metavar="NAME_OR_PATH",
            help="Of the servers of --vllm, such as Qwen/Qwen2-VL-2B-Instruct. Default: random weights, made on the "
            "spot, with a vision tower of 86 M parameters: needs no download and no GPU.",
        ),
    ] = None,
    vllm_args: Annotated[
        str, typer.Option("--vllm-args", help="Further options of both servers, such as '--max-model-len 8192'.")
    ] = "",
    config: ConfigOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = None,
) -> None:
    """Show the work that the caches save.

    Plays conversations about photographs with all caches on, after two kills, and with all off; compares every bit.
    """
    loaded = load(context, config, _as_arguments(workers, device))
    if vllm:
        from mmcached.cli.demo.vllm_server import check_host

        check_host()  # before importing packages that come with vLLM
        from mmcached.cli.demo.vllm_run import run_vllm_demo

        raise typer.Exit(run_vllm_demo(loaded, model=vllm_model, arguments=shlex.split(vllm_args), images=images))
    for flag, value in (("--vllm-model", vllm_model), ("--vllm-args", vllm_args)):
        if value:
            raise InvalidRequest(flag, value, "is for --vllm alone")
    check_packages(loaded.config, "demo")
    if encoder is not None:
        from mmcached.cli.demo.towers import run_tower_demo

        raise typer.Exit(run_tower_demo(loaded.config, encoder, images=images))
    from mmcached.cli.demo.checkpoint import with_checkpoint
    from mmcached.cli.demo.run import as_shown, run_demo

    chosen = as_shown(loaded) if model is None else with_checkpoint(loaded, model)
    raise typer.Exit(run_demo(chosen, images=images, num_users=users, num_turns=turns))


@app.command()
def version(
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Also the version of the service there.", readable=False)
    ] = None,
) -> None:
    """Print the version. With --run-dir, those of client and service."""
    if run_dir is None:
        typer.echo(installed_version())
        return
    from mmcached.cli.admin.versions import print_versions

    print_versions(run_dir.absolute())


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(installed_version())
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle the options before a command."""


# After the commands above, so that the help begins with `serve`.
verbs.register(app)
info.register(app)
store_verbs.register(app)
verify.register(app)
app.command()(doctor)
app.command()(bench)
traces_command.register(app)
config_show.register(app)
ray_command.register(app)


def main() -> NoReturn:
    """Run the command line; a typed error becomes one line on stderr and the exit status of its kind."""
    try:
        app()
    except MmcachedError as error:
        _report(error)
        sys.exit(status_of(error))
    sys.exit(OK)


def _report(error: MmcachedError) -> None:
    _tell(f"{error.code}: {shown(str(error))}")


def _tell(words: str) -> None:
    sys.stderr.write(f"mmcached: {words}\n")


def _as_arguments(workers: str | None, device: str | None) -> tuple[str, ...]:
    given = (("--workers", workers), ("--device", device))
    return tuple(f"{flag}={value}" for flag, value in given if value is not None)
