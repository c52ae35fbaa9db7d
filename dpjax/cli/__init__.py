"""The command line: `dpjax train | predict | epsilon | calibrate | verify | curve | sweep`.

Exit codes: 0 done, 1 a certificate that does not hold, 2 bad input.
"""

from __future__ import annotations

import os
import pathlib

from dpjax._extras import extra

with extra("cli"):
    import rich  # noqa: F401
    import typer

from dpjax.cli import curve, predict, price, sweep, train, verify

app = typer.Typer(
    help="Differentially private training, priced exactly.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
)
app.command("train")(train.train)
app.command("predict")(predict.predict)
app.command("epsilon")(price.epsilon)
app.command("calibrate")(price.calibrate)
app.command("verify")(verify.verify)
app.command("curve")(curve.curve)
app.command("sweep")(sweep.sweep)


def main() -> None:
    """Entry point of the `dpjax` command.

    Compiled programs are kept in `$XDG_CACHE_HOME/dpjax/compiled` (`~/.cache/…`), so that a command
    answers at once the second time. They hold no records and no keys: those are arguments.
    `JAX_COMPILATION_CACHE_DIR` names another place, `JAX_ENABLE_COMPILATION_CACHE=false` none.

    Example:
        >>> app.info.no_args_is_help
        True
    """
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "dpjax" / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    app()
