"""`dpjax predict`: labels and probabilities for new rows, by a model that `dpjax train` left."""

from __future__ import annotations

import pathlib
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from dpjax._numerics.warning import DpjaxWarning
from dpjax.cli import inputs
from dpjax.cli.inputs import option
from dpjax.cli.rows import check_column, leave_out, with_cell_options
from dpjax.cli.texts import quote_cell, say

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from dpjax.data import Schema
    from dpjax.training import SavedModel


def predict(
    model: Annotated[pathlib.Path, typer.Argument(help="The folder of a run.")],
    data: Annotated[
        pathlib.Path,
        option("New rows, in any format that train reads; the target is neither needed nor read."),
    ],
    out: Annotated[
        pathlib.Path, option("The predictions, as CSV; never overwritten.")
    ] = pathlib.Path("predictions.csv"),
    id_column: Annotated[
        str | None,
        option("A column of the new rows that the predictions keep, as their first one.", "--id"),
    ] = None,
    explain: Annotated[
        bool, option("Also what each column adds to each row's score, of a linear model.")
    ] = False,
    missing: inputs.MissingOption = None,
    decimal: inputs.DecimalOption = None,
    thousands: inputs.ThousandsOption = None,
    as_json: Annotated[bool, option("Print a summary as JSON.", "--json")] = False,
) -> None:
    """Predict the class of new rows, or their number.

    Writes one line a row, in the order of the rows: the row's --id where one is named, the label,
    and the probability of each class; or, of a model that was trained with --task regression, the
    number. The rows are encoded as the training records were, by the model's own ranges and
    categories; columns that the model does not know are left out and named, and cells that hold an
    unknown category counted. Cells are read as those of the training records were, unless
    --missing, --decimal or --thousands says otherwise.

    With --explain follow the score, the base, and what each column adds to it: together they are
    the score. Of two classes it is that of the second, which is predicted above 0; of several that
    of the predicted class, less the mean over the classes; of a number the prediction itself,
    before it is clipped to its range.

        dpjax predict runs/people --data new.csv --out predictions.csv
    """
    with inputs.exit_on_bad_input():
        from dpjax import data as reading
        from dpjax import training
        from dpjax.data.encoding import describe_unlisted

        inputs.check_new_file("--out", out, (".csv",))
        saved, described = _load(model, id_column, as_json)
        described = with_cell_options(described, missing, decimal, thousands) or described
        schema = leave_out(described, [id_column] if id_column else []) or described
        frame = reading.read_table(data, schema=schema, is_complete=True)
        if id_column:
            check_column("--id", id_column, list(frame.columns))
        try:
            features, unread = _encode(frame, schema)
            unlisted = describe_unlisted(frame, schema)
        except reading.DataError as error:
            raise reading.DataError(f"--data {data}: {error}") from None
        found = _outputs(saved, features, schema).tolist()
        parts = _explain(saved, frame, found, schema) if explain else []
        if parts and id_column in parts[0]:
            raise ValueError(f"--id must name no column of the predictions, got {id_column!r}")
        kept = frame[[id_column] if id_column else []]
        text = _as_csv(kept, found, schema.classes or (), parts)
        training.write_atomically(out, text.encode())
    known = {column.name for column in schema.columns} | {schema.target}
    unknown = [str(name) for name in frame.columns if name not in known]
    odd = {name: text for name, text in (("unlisted", unlisted), ("warning", unread)) if text}
    if as_json:
        found = {"rows": len(frame), "out": str(out), "columns_left_out": unknown}
        inputs.print_json(found | odd)
        return
    said = "1 prediction is" if len(frame) == 1 else f"{len(frame)} predictions are"
    say(f"{said} in {out}")
    for text in odd.values():
        say(text)
    if unknown:
        say(f"columns that the model does not know, left out: {', '.join(unknown)}")


def _load(model: pathlib.Path, id_column: str | None, as_json: bool) -> tuple[SavedModel, Schema]:
    """The model of a folder and its schema; refuses an id that would be a column twice."""
    from dpjax import data as reading
    from dpjax import training
    from dpjax.accounting import CertificateError

    try:
        saved = training.load_model(model)
    except CertificateError as error:
        inputs.refuse(error, as_json)
    if saved.model is None or saved.encoding is None:
        raise ValueError(f"MODEL must say its architecture and encoding, got {model}")
    described = reading.described_schema(saved.encoding)
    if any(c.name == id_column and c.kind != "ignore" for c in described.columns):
        raise ValueError(f"--id must name a column that is no feature, got {id_column!r}")
    if id_column in _header(described.classes or ()):
        raise ValueError(f"--id must name no column of the predictions, got {id_column!r}")
    return saved, described


def _encode(frame: pd.DataFrame, schema: Schema) -> tuple[np.ndarray, str]:
    """The features of the rows, and what was warned of in their cells."""
    from dpjax import data

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DpjaxWarning)
        features = data.encode_features(frame, schema)
    return features, "; ".join(str(one.message) for one in caught)


def _header(classes: tuple[str, ...]) -> list[str]:
    return ["prediction", *(f"probability of {name}" for name in classes)]


def _as_csv(
    kept: pd.DataFrame, found: list[list[float]], classes: tuple[str, ...], parts: list[list[str]]
) -> str:
    """The columns that are kept of the rows, the likeliest class and all chances, or the number.

    `parts` are further columns, a line a row after one of their names.
    """
    names, *parts = parts or [[]] * (1 + len(found))
    lines = [[*map(str, kept.columns), *_header(classes), *names]]
    own_cells = kept.astype(object).fillna("").to_numpy().tolist()
    for own, row, part in zip(own_cells, found, parts, strict=True):
        label = [classes[_likeliest(row)]] if classes else []
        lines.append([*map(str, own), *label, *(f"{number:.6g}" for number in row), *part])
    return "".join(f"{','.join(map(quote_cell, line))}\n" for line in lines)


def _likeliest(chances: list[float]) -> int:
    return max(range(len(chances)), key=chances.__getitem__)


def _explain(
    saved: SavedModel, frame: pd.DataFrame, found: list[list[float]], schema: Schema
) -> list[list[str]]:
    """The score of each row, its base and the part of each column, after their names."""
    import numpy as np

    from dpjax import effects

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DpjaxWarning)  # of the cells: it was heard before
        parts, classes = effects.explain(saved, frame, schema=schema), schema.classes or ()
    what = f"score of {parts.outputs[0]}" if len(parts.outputs) == 1 else "score"
    names = [what, "base", *(f"part of {name}" for name in parts.columns)]
    output = [_likeliest(row) if len(classes) > 2 else 0 for row in found]
    rows = np.arange(len(frame))
    own = parts.parts[rows, :, output]
    table = np.concatenate(
        [parts.scores[rows, output][:, None], parts.base[output][:, None], own], axis=1
    )
    return [names, *([f"{number:.6g}" for number in row] for row in table.tolist())]


def _outputs(saved: SavedModel, features: np.ndarray, schema: Schema) -> np.ndarray:
    """The probability of each class for each row; without classes a number within its range."""
    import jax
    import numpy as np

    from dpjax import training

    classes, ends, model = schema.classes or (), schema.target_range, saved.model
    assert model is not None  # `_load` refuses others
    like = jax.ShapeDtypeStruct(features.shape[1:], features.dtype)
    try:
        shape = jax.eval_shape(model.apply, saved.params, like).shape
    except (TypeError, ValueError):
        shape = None
    if shape != (len(classes) or 1,) or (ends is None and not classes):
        asked = f" for each of its {len(classes)} classes" if classes or ends is None else ""
        raise ValueError(
            f"MODEL must give one number{asked} from the {features.shape[1]} features of its "
            f"encoding, got {'a model of others' if shape is None else shape}"
        )
    if ends is not None and not classes:
        predict = jax.jit(jax.vmap(model.apply, in_axes=(None, 0)))
        places = np.asarray(predict(saved.params, features), np.float64)
        numbers = ends[0] + (ends[1] - ends[0]) * (np.clip(places, -1.0, 1.0) + 1) / 2
        if not np.isfinite(numbers).all():
            raise ValueError("MODEL must give numbers, got NaN: see its parameters")
        return numbers
    chances = training.probabilities(model, saved.params, features)
    if chances.dtype.kind != "f" or not np.isfinite(chances).all():
        raise ValueError(
            "MODEL must give probabilities, got "
            f"{'complex numbers' if chances.dtype.kind == 'c' else 'NaN: see its parameters'}"
        )
    return chances
