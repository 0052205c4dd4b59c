"""The command line. One module per command; `run` is the entry and turns every error of a user into one line and status 64."""

from __future__ import annotations

import sys

import typer
from typer.exceptions import TyperException

from exporter.cli import (
    baseline,
    canary,
    check,
    dashboards,
    demo,
    explain,
    history,
    parse,
    pause,
    plan,
    probe,
    rules,
    service,
    simulate,
    status,
    validate,
)
from exporter.cli.exits import Exit, NotMeasuredError, UsageError
from exporter.cli.interrupts import interruptible
from exporter.config import ConfigError
from exporter.launch.local import WorkDirError

app = typer.Typer(
    name="efa-pulse",
    help="Watch the network and the serving path of disaggregated LLM inference on AWS EFA.\n\n"
         "Exit status: 0 ok, 1 something is bad, 2 could not measure, 64 wrong usage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("run")(service.run)
app.command("demo")(demo.demo)
app.add_typer(probe.app, name="probe")
app.command("validate")(validate.validate)
app.command("pause")(pause.pause)
app.command("resume")(pause.resume)
app.command("canary")(canary.canary)
app.command("plan")(plan.plan)
app.command("status")(status.status)
app.command("simulate")(simulate.simulate)
app.command("explain")(explain.explain)
app.command("history")(history.history)
app.command("check-config")(check.check_config)
app.command("rules")(rules.rules)
app.add_typer(dashboards.app, name="dashboards")
app.add_typer(baseline.app, name="baseline")
app.add_typer(parse.app, name="parse")


def run(arguments: list[str]) -> int:
    """Run one command. Returns the exit status; 128 and its number where a signal ended it."""
    try:
        with interruptible() as came:
            code = app(args=arguments, prog_name="efa-pulse", standalone_mode=False)
        if came:
            return 128 + came[0]
    except TyperException as error:
        _show(error)
        return Exit.USAGE
    except (UsageError, ConfigError, WorkDirError) as error:
        sys.stderr.write(f"efa-pulse: {error}\n")
        return Exit.USAGE
    except NotMeasuredError as error:
        sys.stderr.write(f"efa-pulse: {error}\n")
        return Exit.UNKNOWN
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return 141  # typer makes a 1 of it, which is the status of a finding
    return int(code) if isinstance(code, int) else Exit.OK


def _show(error: TyperException) -> None:
    """A mistake in the arguments, with the usage line where there is one."""
    show = getattr(error, "show", None)
    if callable(show):
        show(file=sys.stderr)
    else:
        sys.stderr.write(f"efa-pulse: {error}\n")
