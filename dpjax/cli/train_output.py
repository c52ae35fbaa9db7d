"""The folder of a run: where it goes, and the files it ends with."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

from dpjax._files import remove_partial

if TYPE_CHECKING:
    from dpjax.training import Fit, Model, Plan


_FILES = ("params.npz", "model.json", "metrics.csv", "training.png", "certificate.json")


def unused_folder(folder: pathlib.Path, console) -> pathlib.Path:
    """The folder itself if it is empty, else the first free `folder-2`, `folder-3`, …"""
    candidate, number = folder, 2
    while candidate.exists() and not (candidate.is_dir() and not any(candidate.iterdir())):
        if not candidate.is_dir():
            raise ValueError(f"--out must be a folder, got the file {candidate}")
        candidate = folder.with_name(f"{folder.name}-{number}")
        number += 1
    if candidate != folder:
        state = (
            "holds a finished run"
            if (folder / "certificate.json").exists()
            else "is not empty (--resume continues an unfinished run)"
        )
        console.print(f"{folder} {state}; this run goes to {candidate}", markup=False)
    return candidate


def check_same_settings(folder: pathlib.Path, certificate, encoding: dict[str, Any]) -> None:
    """Refuse a finished run of other settings: the run that is asked for would not be made.

    Of the records themselves, and of a seed, a finished run keeps nothing to compare.

    Args:
        folder: of the finished run.
        certificate, encoding: of the run that is asked for.
    """
    from dpjax import training

    found = training.load_model(folder)
    finished: Any = found.certificate
    there, here = _settings(finished), _settings(certificate)
    # To six digits: another version may calibrate to others in the last ones.
    wrong = [
        f"{name} ({there.get(name)} there, {here.get(name)} here)"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    ]
    if found.encoding != json.loads(json.dumps(encoding)):
        wrong.append("how records are encoded")
    for where, one, other in (
        ("there", finished, certificate),
        ("here", certificate, finished),
    ):
        only = [line for line in one.not_covered if line not in other.not_covered]
        wrong += [f"not covered by ε only {where}: {line}" for line in only]
    if wrong:
        raise ValueError(
            "--out must not hold a finished run with other settings where this one is to be made, "
            f"got {folder}: {'; '.join(wrong)}"
        )


def _settings(certificate) -> dict[str, str]:
    """What a certificate says of the settings of its run, in words."""
    from dpjax.accounting.answers.methods import describe
    from dpjax.accounting.answers.plain_words import shown

    return {
        "epsilon": shown(certificate.epsilon),
        "delta": shown(certificate.delta),
        "adjacency": certificate.adjacency.value,
        "mechanism": describe(certificate.mechanism),
        **{name.replace("_", " "): shown(value) for name, value in certificate.declared.items()},
    }


def check_writable(folder: pathlib.Path) -> None:
    """Make the folder, or say why it cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"--out must be writable, got {folder}: {error.strerror or error}"
        ) from None


def write_results(
    folder: pathlib.Path,
    plan: Plan,
    result: Fit,
    model: Model,
    encoding: dict[str, Any],
    certificate,
    *,
    reference: float | None,
    title: str,
) -> None:
    """The outputs, each whole or absent; the certificate last, since it marks a finished run."""
    from dpjax import plotting, training

    for name in _FILES:  # of a run killed while it wrote
        remove_partial(folder / name)
    for name in ("certificate.json", "model.json"):
        (folder / name).unlink(missing_ok=True)
    training.save_model(folder, result.params, model, encoding=encoding)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(result.metrics)
    rows.writerows(zip(*(column.tolist() for column in result.metrics.values()), strict=True))
    training.write_atomically(folder / "metrics.csv", text.getvalue().encode())
    plotting.plot_training(
        result.metrics, folder / "training.png", title=title, delta=plan.delta, reference=reference
    )
    training.write_atomically(folder / "certificate.json", certificate.to_json().encode())
    training.discard_key(folder / "checkpoint")
