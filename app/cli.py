"""The command line: parses, calls, prints. What acts goes through the service's API and is audited there."""

import sys
from importlib import import_module
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tunewarden.commandline.output import Output
from tunewarden.config import Settings, environment, load_reach, load_settings
from tunewarden.errors import SettingsError, TunewardenError

EXIT_FAILED = 1
EXIT_SETTINGS = 2

cli = typer.Typer(
    name="tunewarden",
    help="Receives Alertmanager webhooks and repairs GPU training jobs: save, stop, adjust, restart, prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
message_cli = typer.Typer(help="Messages to DingTalk.", no_args_is_help=True)
breaker_cli = typer.Typer(
    help="The breaker: it opens by itself when too much was done; a person closes it.", no_args_is_help=True
)
cli.add_typer(message_cli, name="message")
cli.add_typer(breaker_cli, name="breaker")

Config = Annotated[
    Path | None, typer.Option("--config", help="The settings file; default: settings.yaml in the state folder.")
]
Job = Annotated[str, typer.Argument(help="A job's name or its id, as `tunewarden jobs` shows them.")]


def _part(name: str) -> Any:
    """A module of ours, imported only by the command that needs it.

    The service's parts (FastAPI, SQLAlchemy, Jinja) cost two seconds of CPU: `run` and `jobs` must not wait for them.
    """
    return import_module(f"tunewarden.{name}")


def _settings(config: Path | None = None) -> Settings:
    return load_settings({"config": config})


def _reach() -> Settings:
    """The settings to find the service with. Faults elsewhere are told, and don't take `stop` away."""
    settings, faults = load_reach()
    if faults:
        Output().aside(f"warning: the settings have faults ({len(faults)}); `tunewarden check` lists them", "yellow")
    return settings


def _client() -> Any:
    settings = _reach()
    return _part("commandline.client").ServiceClient(settings.service_url, settings.agent_token)


@cli.command()
def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0: any free one.")] = None,
) -> None:
    """Start the service: the webhook, the jobs API, deciding, acting and messages."""
    _part("bootstrap").serve(load_settings({"config": config, "host": host, "port": port}), Output().line)


@cli.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def run(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="The job's name; default: this folder's and a short id.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label key=value; may be given again.")] = None,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Policies may stop this job without being switched on.")
    ] = False,
    grace: Annotated[float, typer.Option(help="Seconds that a stop may wait for the save.")] = 120.0,
    simulate_gpu: Annotated[
        str | None,
        typer.Option(help="A pretended card, e.g. 24GiB/256MiB: full at so much RSS; @1 at the end: another card."),
    ] = None,
    no_hook: Annotated[
        bool, typer.Option("--no-hook", help="Leave PYTHONPATH alone: without the training hook few can be saved.")
    ] = False,
    pushgateway: Annotated[
        str | None, typer.Option(help="A Pushgateway's URL: the job's series go there too, deleted at its end.")
    ] = None,
) -> None:
    """Run a training command so that it can be saved, stopped, adjusted and restarted: tunewarden run -- CMD ..."""
    start = _part("commandline.run").run_job
    start(
        _reach(),
        context.args,
        name,
        label or [],
        enforce,
        grace,
        simulate_gpu,
        hook=not no_hook,
        pushgateway=pushgateway,
    )


@cli.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def watch(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="What each job's name begins with; default: its folder's.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label key=value; may be given again.")] = None,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Policies may stop these jobs without being switched on.")
    ] = False,
    grace: Annotated[float, typer.Option(help="Seconds that a stop may wait for the save.")] = 120.0,
) -> None:
    """Run a GUI or a notebook server untouched; the trainings that start inside become jobs: watch -- CMD ..."""
    start = _part("commandline.watch").watch
    start(_reach(), Output(), context.args, name, label or [], grace, enforce=enforce)


@cli.command()
def adopt(
    pid: Annotated[int, typer.Argument(help="A training process of yours that runs already.")],
    name: Annotated[str | None, typer.Option(help="What the job's name begins with; default: its folder's.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label key=value; may be given again.")] = None,
) -> None:
    """Watch a training that runs already, for messages only: nothing of it is saved or stopped."""
    _part("commandline.watch").adopt(_reach(), Output(), pid, name, label or [])


@cli.command()
def jobs() -> None:
    """List the jobs."""
    _part("commandline.people").jobs(_client(), Output())


@cli.command()
def save(job: Job) -> None:
    """Ask a job to save a checkpoint; it trains on."""
    _part("commandline.people").act(_client(), Output(), job, "save")


@cli.command()
def stop(job: Job, now: Annotated[bool, typer.Option("--now", help="Don't save first.")] = False) -> None:
    """Save a job and stop it."""
    _part("commandline.people").act(_client(), Output(), job, "stop", {"now": now})


@cli.command()
def hold(job: Job) -> None:
    """Do nothing automatic to a job until it is released."""
    _part("commandline.people").act(_client(), Output(), job, "hold")


@cli.command()
def release(job: Job) -> None:
    """End a hold."""
    _part("commandline.people").act(_client(), Output(), job, "release")


@cli.command()
def remediations(
    words: Annotated[list[str] | None, typer.Argument(help="Nothing: list. ID: show it. cancel ID: cancel it.")] = None,
) -> None:
    """List remediations, show one, or cancel one: tunewarden remediations [ID | cancel ID]"""
    match words or []:
        case []:
            _part("commandline.people").remediations(_client(), Output())
        case ["cancel", remediation_id]:
            _part("commandline.people").cancel(_client(), Output(), remediation_id)
        case [remediation_id] if remediation_id != "cancel":
            _part("commandline.people").remediation(_client(), Output(), remediation_id)
        case _:
            raise SettingsError(
                "say `tunewarden remediations`, `tunewarden remediations ID` or `tunewarden remediations cancel ID`"
            )


@breaker_cli.command("close")
def breaker_close() -> None:
    """Close the breaker: policies act again."""
    _part("commandline.people").close_breaker(_client(), Output())


@message_cli.command("test")
def message_test(
    target: Annotated[str | None, typer.Argument(help="The robot's name; default: the default one.")] = None,
) -> None:
    """Send a test message to a DingTalk robot."""
    _part("commandline.people").message_test(_client(), Output(), target)


@cli.command()
def check(
    config: Config = None,
    alertmanager: Annotated[bool, typer.Option("--alertmanager", help="Print the lines for alertmanager.yml.")] = False,
) -> None:
    """Check settings and policies; exit 2 with every fault as file:line."""
    _part("commandline.local").check(config, alertmanager, Output())


@cli.command()
def simulate(
    payload: Annotated[Path, typer.Argument(help="A webhook body in a file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: Config = None,
) -> None:
    """Show what would be decided about a webhook body; acts on nothing and needs no service."""
    _part("commandline.local").simulate(_settings(config), payload, as_json, Output())


@cli.command()
def adjust(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG", help="A training config.")],
    knobs: Annotated[list[str], typer.Argument(metavar="KNOB=VALUE...", help="batch_size=/2, batch_size=2, ...")],
    write: Annotated[bool, typer.Option("--write", help="Write the adjusted config beside the original.")] = False,
) -> None:
    """Change knobs of a training config: prints the diff; --write puts a new file beside it."""
    _part("commandline.adjusting").adjust(config_file, knobs, write, Output())


@cli.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def explain(context: typer.Context) -> None:
    """Show how a training command would be saved, adjusted and resumed: tunewarden explain -- CMD ..."""
    _part("commandline.explaining").explain(context.args, Path.cwd(), Output())


@cli.command()
def version() -> None:
    """Print the version."""
    Output().line(package_version("tunewarden"))


@cli.command()
def demo() -> None:
    """Play the whole story with real parts on this machine, then check it from outside."""
    raise typer.Exit(_part("demo.story").play(environment(), _part("demo.screen").demo_console()))


def main() -> NoReturn:
    """The console script. Our errors are one line each; faults of settings end with 2."""
    try:
        cli(standalone_mode=True)
    except SettingsError as error:
        for line in str(error).splitlines():
            Output().error(line)
        sys.exit(getattr(error, "exit_code", EXIT_SETTINGS))
    except TunewardenError as error:
        Output().error(str(error))
        sys.exit(EXIT_FAILED)
    sys.exit(0)
