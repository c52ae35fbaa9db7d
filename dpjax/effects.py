"""What a linear model of a table has learned: each column's effect, and each row's parts.

Parameters and encoding are released, with noise, so that whatever is read off them is
post-processing: it costs no ε.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from dpjax import training
from dpjax._extras import extra
from dpjax.training.parameter_noise import parameter_noise_std

if TYPE_CHECKING:
    import pandas as pd

    from dpjax.accounting import Certificate
    from dpjax.data import Column, Schema

__all__ = ["Change", "Effect", "Effects", "Explained", "explain", "is_linear", "read_effects"]

_POINTS, _POINTS_OF_CELL = 61, 3  # of a number's curve, and of each of its cells
# The optimiser of `dpjax train` before its certificates said which: the last iterate, momentum .9.
_USUAL_MOMENTUM, _USUAL_AVERAGED = 0.9, 1
NOISE = (
    "± is two standard deviations of the noise of training, at most: of noise alone, not of which "
    "records happened to be in the table"
)


class Effect(NamedTuple):
    """What one column adds to the score, by its value.

    Fields:
        column: its name.
        kind: "number" or "category".
        labels: of each value, in words.
        edges: [values, 2] from where to where a number is, infinite at the ends; NaN where missing
            and of categories. Where the effect is a curve both are the number itself.
        scores: [values, outputs] what it adds to each score.
        noise_std: [values, outputs] the standard deviation of the noise in it, at most; None where
            it is not known.
        places: [values, features] its features less those it is centred at.
        across: [values] where a curve's numbers are in a picture, in which each cell between cuts
            is as wide as another; without cuts as the feature has them.

    Example:
        >>> Effect("x", "category", ("a",), np.full((1, 2), np.nan), np.ones((1, 1))).column
        'x'
    """

    column: str
    kind: str
    labels: tuple[str, ...]
    edges: Float[np.ndarray, "values 2"]
    scores: Float[np.ndarray, "values outputs"]
    noise_std: Float[np.ndarray, "values outputs"] | None = None
    places: Float[np.ndarray, "values features"] = np.zeros((0, 0))
    across: Float[np.ndarray, " values"] = np.zeros(0)

    @property
    def is_curve(self) -> bool:
        """Whether it is known at single numbers, and a line between them."""
        first, last = self.edges[0]
        return bool(first == last)


class Change(NamedTuple):
    """The largest change of a score that one column makes.

    Fields:
        column: its name.
        output: the score.
        low, high: the values between which it changes, in words.
        size: by how much.
        noise: two standard deviations of the noise in it, at most; None where it is not known.

    Example:
        >>> Change("age", "yes", "≤ 20", "> 60", 1.5, 0.2).size
        1.5
    """

    column: str
    output: str
    low: str
    high: str
    size: float
    noise: float | None


class Effects(NamedTuple):
    """A model as a sum: base + what each column adds.

    Fields:
        outputs: the name of each score: a class, or the target.
        score: what a score is, in words.
        base: [outputs] the score where every column is where its effect is zero.
        columns: the effects, in the order of the encoding.
        centred: where an effect is zero, in words.
        noise: what the noise's standard deviations are, or why they are not known, in words.
        parameter_std: [outputs] of the noise for features that differ by 1; None: not known.

    Example:
        >>> effect = Effect("x", "category", ("a", "b"), np.full((2, 2), np.nan),
        ...     np.array([[0.0], [1.5]]))
        >>> print(Effects(("yes",), "score", np.zeros(1), (effect,), "", "").table())
        column  from  to  change
        x       a     b   +1.50
    """

    outputs: tuple[str, ...]
    score: str
    base: Float[np.ndarray, " outputs"]
    columns: tuple[Effect, ...]
    centred: str
    noise: str
    parameter_std: Float[np.ndarray, " outputs"] | None = None

    def steepest(self) -> list[Change]:
        """The largest change that each column makes beyond its noise, the largest first.

        Of the pairs of a column's values it is the one whose change exceeds two standard deviations
        of its own noise by most, or where none does the largest, so that noise does not lead the
        list.

        Example:
            >>> Effects((), "", np.zeros(0), (), "", "").steepest()
            []
        """
        found = [self._find_steepest(effect) for effect in self.columns]
        return [change for _, change in sorted(found, key=lambda one: -one[0])]

    def _find_steepest(self, effect: Effect) -> tuple[float, Change]:
        """The change that exceeds its noise by most, with by how much."""
        gaps = effect.scores[None, :] - effect.scores[:, None]  # from the first to the second
        noise = np.zeros_like(gaps)
        if self.parameter_std is not None:
            apart = np.linalg.norm(effect.places[None, :] - effect.places[:, None], axis=-1)
            noise = 2 * apart[..., None] * self.parameter_std
        # Noise is alike in every weight, so that a difference of scores has that of the distance of
        # its features.
        beyond = gaps - noise
        beyond[np.arange(len(gaps)), np.arange(len(gaps))] = -np.inf  # of a value with itself
        # Where no change exceeds its noise the largest is said: the smallest has least of both.
        leading = beyond if np.max(beyond) > 0 else gaps
        low, high, output = np.unravel_index(np.argmax(leading), beyond.shape)
        change = Change(
            effect.column, self.outputs[output], effect.labels[low], effect.labels[high],
            float(gaps[low, high, output]),
            None if self.parameter_std is None else float(noise[low, high, output]),
        )  # fmt: skip
        return float(beyond[low, high, output]), change

    def table(self, most: int | None = None) -> str:
        """What moves a prediction, as text: one line a column, the steepest first.

        Args:
            most: how many columns; None: all.

        Example:
            >>> print(Effects((), "", np.zeros(0), (), "", "").table())
            column  from  to  change
        """
        several = len(self.outputs) > 1
        head = ["column", *["class"] * several, "from", "to", "change"]
        rows = [head]
        for one in self.steepest()[:most]:
            around = "" if one.noise is None else f" ± {one.noise:.2f}"
            own = [one.output] * several
            rows.append([one.column, *own, one.low, one.high, f"{one.size:+.2f}{around}"])
        rows = [[shorten(cell) for cell in row] for row in rows]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        padded = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
        return "\n".join("  ".join(row).rstrip() for row in padded)


class Explained(NamedTuple):
    """Rows of a table as sums of what their columns add.

    Fields:
        outputs: the name of each score.
        columns: the names of the columns.
        base: [outputs] of every row.
        parts: [rows, columns, outputs] what each column adds.

    Example:
        >>> found = Explained(("yes",), ("x",), np.ones(1), np.ones((2, 1, 1)))
        >>> found.scores.ravel().tolist()
        [2.0, 2.0]
    """

    outputs: tuple[str, ...]
    columns: tuple[str, ...]
    base: Float[np.ndarray, " outputs"]
    parts: Float[np.ndarray, "rows columns outputs"]

    @property
    def scores(self) -> Float[np.ndarray, "rows outputs"]:
        """The sum of base and parts: what the model says of each row, before its link."""
        return self.base + self.parts.sum(axis=1)


class _Linear(NamedTuple):
    """A model as scores = features @ weights + base, of an encoding."""

    weights: np.ndarray  # [features, outputs]
    base: np.ndarray  # [outputs]
    outputs: tuple[str, ...]
    score: str
    schema: Schema
    noise: str
    parameter_std: np.ndarray | None  # [outputs]

    def divide(self, blocks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The weights of each column's features."""
        ends = np.cumsum([block.shape[1] for block in blocks.values()])
        if ends[-1] != len(self.weights):
            raise ValueError(
                f"model must take the {ends[-1]} features of its encoding, got one of "
                f"{len(self.weights)}"
            )
        return dict(zip(blocks, np.split(self.weights, ends[:-1]), strict=True))


@runtime_checkable
class Fitted(Protocol):
    """A fitted estimator of `dpjax.estimators` that can be saved."""

    def as_saved(self) -> training.SavedModel:
        """What its folder would hold."""
        ...


def read_effects(model: str | pathlib.Path | training.SavedModel | Fitted) -> Effects:
    """Each column's effect on the score of a linear model of a table, with the noise in it.

        score = base + Σⱼ effectⱼ(value of column j)

    Of two classes the score is that of the second (above 0 it is predicted); of several each class
    has one, less the mean over the classes; of a number it is the prediction, before it is clipped
    to its range. An effect is zero at its mean over the shares of the column's values, where they
    were released with the encoding, and else at its plain mean over the values that it has. Values
    that share buckets (`data.buckets`) have no names: one effect is of their mean, while `explain`
    goes by the bucket of a row's value.

    Args:
        model: the folder of a run, what `training.load_model` found in it, or a fitted estimator of
            `dpjax.estimators` that can be saved.

    Returns:
        The effects, by column. Where the certificate says how the model was trained, each has the
        standard deviation of the noise in it, by `training.parameter_noise_std`: at most for a
        convex quadratic loss, since noise is taken as if the loss did not curve.

    Raises:
        ValueError: no linear model of a table (a perceptron's score is no sum over columns), or no
            encoding.

    Guarantee:
        Post-processing of what the run released: it reads no record, and costs no ε.

    Example:
        >>> import tempfile
        >>> from dpjax import data
        >>> schema = data.Schema(
        ...     (data.Column("job", "category", categories=("a", "b")),), target="paid",
        ...     classes=("no", "yes"))
        >>> folder = training.save_model(
        ...     tempfile.mkdtemp(),
        ...     {"weights": np.array([-1.0, 1.0], "f"), "bias": np.zeros((), "f")},
        ...     training.logistic(2), encoding=data.describe_encoding(schema))
        >>> found = read_effects(folder)
        >>> found.columns[0].labels, found.columns[0].scores.ravel().tolist()
        (('a', 'b', 'any other'), [-1.0, 1.0, 0.0])
        >>> print(found.table())
        column  from  to  change
        job     a     b   +2.00
    """
    linear = _read(model)
    levels = _list_levels(linear.schema)
    weights = linear.divide({one.column.name: one.features for one in levels})
    base, found = linear.base, []
    for one in levels:
        own, places = weights[one.column.name], one.features - one.centre
        base = base + one.centre @ own
        noise = None
        if linear.parameter_std is not None:
            noise = np.linalg.norm(places, axis=1)[:, None] * linear.parameter_std
        facts = one.column.name, one.column.kind, one.labels, one.edges
        found.append(Effect(*facts, places @ own, noise, places, one.across))
    centred, std = _describe_centres(levels), linear.parameter_std
    return Effects(linear.outputs, linear.score, base, tuple(found), centred, linear.noise, std)


def explain(
    model: str | pathlib.Path | training.SavedModel | Fitted,
    frame: pd.DataFrame,
    *,
    schema: Schema | None = None,
) -> Explained:
    """What each column adds to the score of each row: its effect at the value that the row has.

    Args:
        model: as of `read_effects`.
        frame: rows with the columns of the model's encoding.
        schema: the model's, but for how cells of these rows are written; None: as those of the
            training records were.

    Returns:
        The parts; with the base they sum to the scores.

    Raises:
        ValueError: as of `read_effects`.
        DataError: a column is missing, or a cell is no number.

    Guarantee:
        Post-processing, of the rows that are given: what it says of a row tells of that row.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> from dpjax import data
        >>> schema = data.Schema(
        ...     (data.Column("x", range=(0.0, 10.0)),), target="y", classes=("no", "yes"))
        >>> folder = training.save_model(
        ...     tempfile.mkdtemp(), {"weights": np.array([2.0], "f"), "bias": np.zeros((), "f")},
        ...     training.logistic(1), encoding=data.describe_encoding(schema))
        >>> explain(folder, pd.DataFrame({"x": [5.0, 10.0]})).parts.ravel().tolist()
        [0.0, 2.0]
    """
    from dpjax.data.encoding import encode_columns

    linear = _read(model)
    blocks, base, parts = encode_columns(frame, schema or linear.schema), linear.base, []
    weights = linear.divide(blocks)
    for one in _list_levels(linear.schema):
        own, block = weights[one.column.name], blocks[one.column.name].astype(np.float64)
        base = base + one.centre @ own
        parts.append((block - one.centre) @ own)
    return Explained(linear.outputs, tuple(blocks), base, np.stack(parts, axis=1))


_LINEAR = ("logistic", "softmax")  # kinds of architectures; of one output: a linear function
_NOT_LINEAR = (
    "model must be linear in the features of its encoding, as logistic, softmax and linear models "
    "are, for the effect of a column, got {}: its score is no sum over columns"
)


def is_linear(saved: training.SavedModel) -> bool:
    """Whether a model is a sum over the columns of its encoding, which a perceptron is not.

    Args:
        saved: what `training.load_model` found.

    Example:
        >>> is_linear(training.SavedModel({}, training.mlp(2, 2), {}, None))
        False
    """
    architecture = None if saved.model is None else saved.model.architecture
    is_sum = architecture is not None and architecture["kind"] in _LINEAR
    return is_sum and saved.encoding is not None


def _find_saved(
    model: str | pathlib.Path | training.SavedModel | Fitted,
) -> training.SavedModel:
    """The model, wherever it is."""
    if isinstance(model, training.SavedModel):
        return model
    if isinstance(model, str | pathlib.Path):
        return training.load_model(model)
    if not isinstance(model, Fitted):
        raise ValueError(
            "model must be the folder of a run, what training.load_model found in it, or a fitted "
            f"estimator that can be saved, such as DPLogisticRegression, got {type(model).__name__}"
        )
    return model.as_saved()


def _read(model: str | pathlib.Path | training.SavedModel | Fitted) -> _Linear:
    """The weights of a linear model, its scores less what no prediction depends on."""
    from dpjax import data

    saved = _find_saved(model)
    architecture = None if saved.model is None else saved.model.architecture
    kind = None if architecture is None else architecture["kind"]
    if kind not in _LINEAR:
        raise ValueError(_NOT_LINEAR.format("a perceptron" if kind == "mlp" else "another one"))
    if saved.encoding is None:
        raise ValueError("model must say the encoding of its features, got one without")
    schema = data.described_schema(saved.encoding)
    weights = np.asarray(saved.params["weights"], np.float64)
    bias = np.asarray(saved.params["bias"], np.float64)
    weights, bias = (weights[:, None], bias[None]) if kind == "logistic" else (weights, bias)
    classes, count = schema.classes or (), weights.shape[1]
    wanted = 1 if kind == "logistic" and len(classes) == 2 else len(classes) or 1
    if count != wanted or (kind == "logistic" and len(classes) != 2):
        raise ValueError(
            f"model must have a score for each of the {len(classes)} classes of its encoding, got "
            f"{count}"
        )
    # What is added to all scores of a softmax changes no probability: of two the difference counts,
    # of several what each has above their mean.
    if not classes:
        low, high = schema.target_range or (-1.0, 1.0)
        half = (high - low) / 2
        mixing, outputs = np.full((1, 1), half), (str(schema.target),)
        bias = bias + (low + half) / half
        score = f"prediction of {schema.target}, before it is clipped to its range"
    elif len(classes) == 2:
        mixing = np.ones((1, 1)) if kind == "logistic" else np.array([[-1.0], [1.0]])
        outputs, score = classes[1:], f"score of {classes[1]} (above 0 it is predicted)"
    else:
        mixing, outputs = np.eye(count) - 1 / count, classes
        score = "score of each class, less the mean over the classes (larger is likelier)"
    std, noise = _find_noise(saved.certificate)
    # Noise in the parameters of each score is independent: of a mixture it adds up in squares.
    mixed = None if std is None else std * np.linalg.norm(mixing, axis=0)
    return _Linear(weights @ mixing, bias @ mixing, outputs, score, schema, noise, mixed)


def _find_noise(certificate: Certificate | None) -> tuple[float | None, str]:
    """The standard deviation of the noise in a parameter, and what it is or why it is not known."""
    if certificate is None:
        return None, "the noise is not known: there is no certificate"
    facts = certificate.declared
    own = "training_" if "training_steps" in facts else ""
    names = f"{own}noise_multiplier", f"{own}steps", "clip_norm", "batch_size", "learning_rate"
    found = [facts.get(name) for name in names]
    numbers = [float(one) for one in found if isinstance(one, int | float)]
    if len(numbers) < len(names) or not all(math.isfinite(one) and one > 0 for one in numbers):
        return None, "the noise is not known: the certificate does not say how one run was trained"
    multiplier, steps, clip_norm, batch_size, rate = numbers
    averaged = max(1, int(facts.get("averaged_steps", _USUAL_AVERAGED)))
    momentum = float(facts.get("momentum", _USUAL_MOMENTUM))
    # A sum's noise is divided by the expected batch size, as its mean is.
    stds = np.full(int(steps), multiplier * clip_norm / batch_size)
    return parameter_noise_std(stds, rate, momentum=momentum, averaged=averaged), NOISE


class _Levels(NamedTuple):
    """The values of a column at which its effect is asked, as features."""

    column: Column
    labels: tuple[str, ...]
    edges: np.ndarray  # [values, 2]
    across: np.ndarray  # [values]
    features: np.ndarray  # [values, features], float64
    centre: np.ndarray  # [features]: their mean
    has_shares: bool  # whether it is one over released shares


class _Cells(NamedTuple):
    """The same before it is encoded."""

    column: Column
    labels: tuple[str, ...]
    edges: np.ndarray
    across: np.ndarray
    cells: list[Any]


def _list_levels(schema: Schema) -> list[_Levels]:
    """Every feature column's values, encoded as a table of them would be."""
    with extra("data"):
        import pandas as pd

    from dpjax.data.encoding import encode_columns

    used = [column for column in schema.columns if column.kind != "ignore"]
    listed = [
        (_cells_of_number if column.kind == "number" else _cells_of_category)(column, schema)
        for column in used
    ]
    rows = max(len(one.cells) for one in listed)
    # Shorter columns repeat their last value.
    padded = {
        one.column.name: one.cells + one.cells[-1:] * (rows - len(one.cells)) for one in listed
    }
    blocks = encode_columns(pd.DataFrame(padded), schema)
    found = []
    for one in listed:
        features = blocks[one.column.name][: len(one.cells)].astype(np.float64)
        if shared := one.column.buckets:  # the last value is any other, of the mean over buckets
            features[-1, -shared:] = features[-1, -shared:].mean()
        shares = None
        centre = features.mean(axis=0) if shares is None else shares @ features
        found.append(_Levels(*one[:4], features, centre, shares is not None))
    return found


def _describe_centres(levels: list[_Levels]) -> str:
    """Where effects are zero, by whether shares of values were released."""
    known = [one.has_shares for one in levels]
    plain, mean = "its plain mean over the values that are listed", "its mean over the released"
    if all(known):
        return f"an effect is zero at {mean} shares of the column's values"
    if not any(known):
        return f"an effect is zero at {plain}"
    return f"an effect is zero at {mean} shares of values, where there are any, else at {plain}"


def _cells_of_category(column: Column, schema: Schema) -> _Cells:
    """Each category, and one that is none of them."""
    categories = column.categories or ()
    other = "any other"
    while other in categories or other in schema.missing:
        other += " one"
    labels = [name or "missing" for name in categories]
    some = "any other" if "" in categories or not schema.missing else "missing or other"
    labels.append(f"{some} (mean)" if column.buckets else some)
    edges = np.full((len(labels), 2), np.nan)
    return _Cells(column, tuple(labels), edges, np.arange(len(labels)), [*categories, other])


def _cells_of_number(column: Column, schema: Schema) -> _Cells:
    """A number of each bin, or those of a curve; and a missing one, where one may be."""
    edges, across = _find_edges(column)
    cells = [high if math.isfinite(high) else math.nextafter(low, math.inf) for low, high in edges]
    ends = column.cuts or column.range or ()
    name, behind = _namer(ends), {math.nextafter(cut, math.inf): cut for cut in column.cuts or ()}
    labels = []
    for low, high in edges:
        if low == high:
            labels.append(f"> {name(behind[low])}" if low in behind else name(low))
        elif low == -math.inf:
            labels.append(f"≤ {name(high)}")
        elif high == math.inf:
            labels.append(f"> {name(low)}")
        else:
            labels.append(f"{name(low)} – {name(high)}")
    if schema.missing:
        cells.append(math.nan)
        labels.append("missing")
        edges = np.concatenate([edges, np.full((1, 2), np.nan)])
        across = np.append(across, np.nan)
    return _Cells(column, tuple(labels), edges, across, cells)


def _find_edges(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """From where to where a number's effect is one, or numbers along its range; and `across`."""
    if column.cuts is None:
        assert column.range is not None
        numbers, across = _space(column, *column.range, _POINTS), np.linspace(0, 1, _POINTS)
    elif column.line_weight is None:
        ends = np.concatenate([[-np.inf], column.cuts, [np.inf]])
        return np.stack([ends[:-1], ends[1:]], axis=1), np.arange(len(ends) - 1.0)
    else:
        assert column.range is not None
        low, high = min([column.range[0], *column.cuts]), max([column.range[1], *column.cuts])
        behind = [math.nextafter(cut, math.inf) for cut in column.cuts[-1:]]
        ends = [low, *column.cuts, max([high, *behind])]
        # A cell begins behind a cut and ends with the next; beyond the range the line is flat.
        starts = [low, *(math.nextafter(cut, math.inf) for cut in column.cuts)]
        pairs = zip(starts, ends[1:], strict=True)
        numbers = np.concatenate([_space(column, a, b, _POINTS_OF_CELL) for a, b in pairs])
        cells = np.arange(len(starts))[:, None]
        across = (cells + np.linspace(0, 1, _POINTS_OF_CELL)).ravel()
    return np.stack([numbers, numbers], axis=1), across


def _space(column: Column, low: float, high: float, count: int) -> np.ndarray:
    """So many numbers from one to another, in even steps of the column's feature."""
    to, back = _SCALES[column.scale]
    first, last = (float(to((end - column.centre) / column.width)) for end in (low, high))
    numbers = back(np.linspace(first, last, count)) * column.width + column.centre
    numbers = np.clip(numbers, low, high)
    numbers[0], numbers[-1] = low, high  # to the last digit: a cut is in the cell below it
    return numbers


def _same(numbers: np.ndarray | float) -> np.ndarray | float:
    return numbers


_SCALES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "linear": (_same, _same),
    "log": (np.log1p, np.expm1),
    "asinh": (np.arcsinh, np.sinh),
}


def _namer(numbers: tuple[float, ...]) -> Callable[[float], str]:
    """A writer of numbers with as few digits as tell these apart."""
    for digits in range(3, 18):
        written = [write_number(number, digits) for number in numbers]
        if len(set(written)) == len(written):
            break
    return lambda number: write_number(number, digits)


def write_number(number: float, digits: int = 3) -> str:
    """A number with so many digits, none of them lost before the point.

    Example:
        >>> write_number(12345.678), write_number(0.012345)
        ('12,346', '0.0123')
    """
    if 10.0**digits <= abs(number) < 1e9:
        return f"{number:,.0f}"
    return f"{number:,.{digits}g}"


def shorten(text: str, most: int = 28) -> str:
    """A text of a table or a picture, on one line and cut in its middle where it is long.

    Example:
        >>> shorten("a" * 20 + "b" * 20, 9)
        'aaaa…bbbb'
    """
    text = "".join(one if one.isprintable() else " " for one in text)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"
