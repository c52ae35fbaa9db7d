"""`dpjax train`: from a file to a model, a picture and a certificate.

Its options are in `options.py`; what they lead to is in `settings.py` and `run.py`.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import typer

from dpjax.cli import inputs, private, run, settings, signals
from dpjax.cli.options import PreprocessingOption, TrainOptions
from dpjax.cli.texts import quote_path, say

if TYPE_CHECKING:
    from dpjax.cli.tune import Search


def train(options: TrainOptions) -> None:
    """Train a model privately, and certify it.

    Ranges, categories and classes are released with noise, in the same certificate, where no schema
    declares them. Prints the plan (noise, sampling, what they cost, and what ε does not cover),
    trains, and leaves certificate.json, model.json, model.safetensors, metrics.csv, training.png,
    of a linear model effects.png, which shows what it learned, and a checkpoint in the output
    folder. `dpjax predict` uses the model, `dpjax verify` recomputes the certificate.

        dpjax train --data digits --epsilon 3 --delta 1e-4
        dpjax train --data people.csv --target income --epsilon 1
        dpjax train --data people.csv --target income --epsilon 1 --schema people.toml
        dpjax train --data people.csv --target age --epsilon 1 --task regression
    """
    finish(options)


def finish(options: TrainOptions, search: Search | None = None) -> None:
    """Go from the options of a run, or of one run of a search, to its folder."""
    from dpjax.cli.console import PlainConsole

    signals.exit_on_closed_pipe(False)  # a run says how to go on, whoever listens
    console = PlainConsole(stderr=options.as_json)
    resume, named = options.resume, pathlib.Path("runs") / pathlib.Path(options.data).name
    with inputs.exit_on_bad_input():
        folder = (options.out or named.with_name(named.name.split(".")[0])).resolve()
        if options.ledger is not None:
            unit = "person" if options.person else "record"
            inputs.check_ledger(options.ledger, options.data, options.adjacency, unit)
        folder = folder if resume else run.unused_folder(folder, console)
        complete = settings.choose_defaults(options, folder, search)
        is_private = options.preprocessing is PreprocessingOption.private
        try:
            job = (private if is_private else settings).prepare(complete, folder)
        except KeyboardInterrupt:
            say(f"\ninterrupted; {run.describe_saved_steps(folder)}", err=True)
            raise typer.Exit(inputs.INTERRUPTED) from None
        if resume and (folder / "certificate.json").exists():
            run.check_same_settings(folder, job)
            run.discard_keys(folder)
            console.print(f"{folder} is a finished run of these settings; nothing is left to do.")
            return
        inputs.check_writable(folder)
    try:
        settings.show_plan(console, job)
        job = job if search is None else search.hide_held_out(job)
        found = run.train_privately(console, job, folder)
    except KeyboardInterrupt:
        say(f"\ninterrupted; {run.describe_saved_steps(folder)}", err=True)
        raise typer.Exit(inputs.INTERRUPTED) from None
    interrupted = f"the run is trained: the same command with --out {quote_path(folder)} "
    interrupted += "--resume goes on"
    with inputs.exit_on_bad_input(interrupted):
        run.write_results(folder, found)
    summary = {"folder": str(folder), **found.summarise()}
    if options.as_json:
        inputs.print_json(summary)
    else:
        settings.show_result(console, summary)
