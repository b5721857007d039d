"""The command line: `legato COMMAND`. A mistake of the user's gets one line on stderr and exit code 2."""

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from legato import __version__
from legato.cli.checkout import bench, study
from legato.cli.config import app as config
from legato.cli.doctor import doctor
from legato.cli.profile import profile
from legato.cli.run import run
from legato.cli.server import server
from legato.cli.sim import sim
from legato.cli.top import dashboard, top
from legato.cli.trace import app as trace
from legato.cli.tune import app as tune
from legato.errors import LegatoError

app = typer.Typer(
    name="legato",
    help="Schedules the communication of distributed training, and tells you what it would gain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


app.command()(sim)
app.command()(profile)
app.command()(doctor)
app.command()(server)
# What comes after its own options is torchrun's, and the script's.
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)(run)
app.command()(top)
app.command()(dashboard)
app.command()(study)
app.command()(bench)
app.add_typer(trace)
app.add_typer(tune)
app.add_typer(config)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the answer is the exit code."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except TyperException as error:
        message, code = error.format_message(), 2
    except LegatoError as error:
        message, code = str(error), 2
    except typer.Abort:
        message, code = "interrupted", 130
    print(f"legato: {' '.join(message.split())}", file=sys.stderr)
    return code
