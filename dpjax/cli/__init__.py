"""The command line: `dpjax train | tune | schema | predict | epsilon | calibrate | verify |
ledger | report | curve | sweep`.

Exit codes: 0 done, 1 a certificate that does not hold, 2 bad input or no place for the answer, 3 a
mistake of the program, 130 interrupted; a closed pipe ends a command by its signal.
"""

from __future__ import annotations

import gc
import inspect
import textwrap
from collections.abc import Callable
from typing import Annotated

from dpjax._extras import extra

with extra("cli"):
    import rich  # noqa: F401
    import typer

from dpjax.cli import compiled, predict, price, report, schema, signals, texts, train, tune, verify
from dpjax.cli.options import TrainOptions, TuneOptions, as_command

_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    help="Differentially private training, priced exactly.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
    context_settings=_HELP,
)


def _help(command: Callable[..., None]) -> str:
    """The docstring, with its examples left on lines of their own."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    marked = (
        "\b\n" + textwrap.indent(textwrap.dedent(p), "    ")
        if p.lstrip().startswith("dpjax ")
        else p
        for p in paragraphs
    )
    return "\n\n".join(marked)


def _say_version(asked: bool) -> None:
    if asked:
        import dpjax

        typer.echo(f"dpjax {dpjax.__version__}")
        raise typer.Exit()


@app.callback()
def of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Differentially private training, priced exactly."""


for _name, _command in {
    "train": as_command(train.train, TrainOptions),
    "tune": as_command(tune.tune, TuneOptions),
    "schema": schema.schema,
    "predict": predict.predict,
    "epsilon": price.epsilon_command,
    "calibrate": price.calibrate_command,
    "verify": verify.verify,
    "ledger": verify.ledger,
    "report": report.report,
    "curve": price.curve_command,
    "sweep": price.sweep_command,
}.items():
    app.command(_name, help=_help(_command), context_settings=_HELP)(_command)


def main() -> None:
    """Entry point of the `dpjax` command."""
    compiled.keep_programs()
    # What imports make stays: looking for garbage in it took a third of a short command's time.
    gc.set_threshold(100_000, *gc.get_threshold()[1:])
    texts.spell_what_streams_cannot_say()
    signals.exit_on_closed_pipe(True)
    signals.finish_process(app)
