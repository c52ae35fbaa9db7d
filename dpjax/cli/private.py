"""A run of `dpjax train` of which nothing is learned from the records but with noise.

The table's encoding is a `data.PrivateTable`, and the held-out accuracy a noisy count. One key
decides the split, both, and the training: it is stored, bound to records and settings, before
anything is released, so that a run that is killed goes on with the same noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import pathlib
import types
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpjax.cli import inputs, settings

if TYPE_CHECKING:
    from dpjax.data import Dataset, PrivateTable, Schema
    from dpjax.training import Plan

_HELD_OUT = 0.2
_ROWS = 20  # of the metrics: each is a noisy count of its own
# Where held-out records are compared with the run: parts of its ε, the least δ, Rényi orders.
_SHARES, _LEAST = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), 1e-30
_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
_NO_CLASS = ("none was released",)
# What the key is bound to, besides the records and the seed.
_BOUND = (
    *("target", "epsilon", "delta", "model", "steps", "batch_size", "sampling", "clip_norm"),
    *("adjacency", "missing", "decimal", "thousands", "numeric", "encoding"),
)


def prepare(options: types.SimpleNamespace, folder: pathlib.Path) -> settings.Run:
    """The run, its table released; in a folder that holds a finished one, as that one was."""
    from dpjax import data, training
    from dpjax.data.schema import RELEASED
    from dpjax.training.plan import NOTHING_CHOSEN

    settings.check_options(options)
    written = options.missing, options.decimal, options.thousands
    rows = inputs.read_rows(
        options.data, options.target, options.schema, options.test, written, as_written=True
    )
    is_finished = options.resume and (folder / "certificate.json").exists()
    finished: Any = training.load_model(folder) if is_finished else None
    key = _Key(options, folder, rows)
    held = None if rows.held_out is not None else _draw_held_out(key.value, len(rows.train))
    frame = rows.train if held is None else rows.train[~held]
    count = len(frame)
    if finished is not None:  # its key is gone, and with it which records it held out
        count = int(finished.certificate.declared.get("records", count))
    table, notes = _plan_table(options, rows, count)
    released = None if table.mechanism.parts() == () else table.mechanism
    before = {"preceding": released, "extra_delta": table.extra_delta}
    plan = settings.plan_for(options, count, selection=_select(options, rows), **before)
    if finished is None:
        key.store(plan)
        options.ledger = None  # the looks are releases too: the whole run is booked before them
        schema = table.release(frame, key.value)
    else:
        schema = data.described_schema(finished.encoding)
    if len(schema.classes or ()) < 2:
        notes = (*notes, _describe_constant(table, len(schema.classes or ())))
        schema = replace(schema, classes=schema.classes or _NO_CLASS)
    model, learning_rate = settings.choose_model(options, len(schema.classes or ()))
    if model == "logistic" and len(schema.classes or ()) != 2:
        model = "softmax"
    held_out, total = _encode_held_out(
        rows.train[held] if held is not None else rows.held_out, schema
    )
    score, stddev, assumed = _noisy_accuracy(plan, total, key.value, public=held is None)
    certificate = plan.certify(
        not_covered=settings.list_chosen_disclosures(options),
        assumptions=(*NOTHING_CHOSEN, *table.public, *assumed),
        declared={"model": model, "learning_rate": learning_rate, "encoding": table.encoding}
        | (options.search.describe() if options.search else {}),
    )
    return settings.Run(
        options,
        data.encode_released(frame, schema),
        held_out,
        data.describe_encoding(schema, rows.schema, learned=RELEASED),
        plan,
        certificate,
        model,
        learning_rate,
        key=key.value,
        perturb=score,
        accuracy_stddev=stddev,
        log_every=_rows_apart(plan) if stddev else None,
        notes=notes,
    )


def _select(options: types.SimpleNamespace, rows: inputs.Rows) -> Any:
    """How the best of several runs is chosen; None of a single one."""
    search = options.search
    return search and search.select(options, is_public=rows.held_out is not None)


class _Key:
    """The key of a run: a stored one where there is one, else one that is stored before use."""

    def __init__(self, options: types.SimpleNamespace, folder: pathlib.Path, rows: inputs.Rows):
        import jax

        from dpjax.transforms import fresh_key

        self.options, self.folder, self.rows = options, folder / "checkpoint" / "table", rows
        seed = options.seed
        self.value: Any = fresh_key() if seed is None else jax.random.key(seed)
        self.is_stored = bool(options.resume and (self.folder / "noise_key.json").exists())
        if self.is_stored:
            self.store()

    def store(self, plan: Plan | None = None) -> None:
        """Bind the key to what it is used with, and book the plan; twice is once."""
        from dpjax._numerics.keys import name_of_key
        from dpjax.training import Checkpoints
        from dpjax.training.fit import book_once, open_ledger

        ledger: Any = None if plan is None else self.options.ledger
        if plan is not None and ledger is not None:  # refused before a folder is made
            ledger = open_ledger(ledger, plan, resume=self.is_stored)
        inputs.check_writable(self.folder.parent.parent)
        with contextlib.closing(Checkpoints(self.folder)) as store:
            self.value = store.bind(self.value, self._identity, resume=self.options.resume)
            # Drawn by chance also where an earlier process drew it.
            named = name_of_key(self.value, drawn=self.options.seed is None)
            if plan is not None and ledger is not None:
                book_once(plan, named, store, ledger)

    def _identity(self, key: Any) -> dict[str, Any]:
        """The records by a digest that nobody can test without the key, and all settings."""
        import jax
        import numpy as np

        code = hmac.new(np.asarray(jax.random.key_data(key)).tobytes(), digestmod=hashlib.sha256)
        for frame in (self.rows.train, self.rows.held_out):
            if frame is None:
                continue
            for name in frame.columns:
                values = frame[name].to_numpy()
                text = (
                    values.tobytes() if values.dtype != object else repr(values.tolist()).encode()
                )
                code.update(repr((name, len(text))).encode() + text)
        bound = {name.replace("_", " "): str(getattr(self.options, name)) for name in _BOUND}
        bound |= {} if self.options.search is None else {"search": repr(self.options.search)}
        return {
            "data": code.hexdigest(),
            "seed": self.options.seed,
            **bound,
            "schema": repr(self.rows.schema),
        }


def _draw_held_out(key: Any, records: int) -> Any:
    """A coin for every record, drawn in secret: which one is held out says nothing of others."""
    import jax
    import numpy as np

    from dpjax._numerics.keys import fold_in_words
    from dpjax.data import DataError
    from dpjax.data.private_table import SPLIT_FOLD

    held = np.asarray(jax.random.bernoulli(fold_in_words(key, SPLIT_FOLD), _HELD_OUT, (records,)))
    if held.all() or not held.any():
        raise DataError(f"{records} records are too few to hold out a share of {_HELD_OUT}")
    return held


def _plan_table(
    options: types.SimpleNamespace, rows: inputs.Rows, count: int
) -> tuple[PrivateTable, tuple[str, ...]]:
    """The looks at so many records, and what the user should hear of them."""
    from dpjax import accounting as acc
    from dpjax import data

    schema = replace(rows.schema or data.Schema(()), target=rows.target)
    known = [column.name for column in schema.columns if column.name in rows.train.columns]
    others = [n for n in rows.train.columns if n not in known and n != rows.target]
    numeric = None if options.numeric is None else options.numeric.split(",")
    numeric = None if numeric is None else tuple(name.strip() for name in numeric if name.strip())
    encoding = options.encoding or ("asinh" if options.model == "mlp" else "tail-bins")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        table = data.PrivateTable.for_budget(
            [*known, *others],
            schema,
            count,
            epsilon=options.epsilon,
            delta=settings.choose_delta(options, count),
            adjacency=acc.Adjacency(options.adjacency),
            numeric=numeric,
            encoding=encoding,
        )
    return table, tuple(f"warning: {warning.message}" for warning in caught)


def _describe_constant(table: PrivateTable, classes: int) -> str:
    """Why the model is a constant one, and what to give."""
    found = "no class" if classes == 0 else "one class"
    return (
        f"warning: {found} of {table.schema.target!r} stands out of the noise, with a count above "
        f"{table.threshold:,}: the model is a constant; declare classes in a schema, or give more "
        "records or a larger --epsilon"
    )


def _encode_held_out(frame: Any, schema: Schema) -> tuple[Dataset, tuple[int, int]]:
    """Records to be predicted, of released classes; how many these are, and how many of all."""
    from dpjax import data

    found = data.encode_released(frame, schema, unknown=-1)
    known = found.labels >= 0  # one of another class is never predicted rightly
    if not known.any():
        return replace(found, labels=0 * found.labels), (0, len(found))
    found = replace(found, features=found.features[known], labels=found.labels[known])
    return found, (len(found), len(known))


def _rows_apart(plan: Plan) -> int:
    """Steps between two rows of the metrics; of the best run of a search the last one alone."""
    return plan.steps if plan.selection else max(1, math.ceil(plan.steps / _ROWS))


def _list(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _calibrate_counts(plan: Plan, shown: int) -> float:
    """The least noise by which so many counts cost nowhere more than the run."""
    import numpy as np

    from dpjax import accounting as acc

    def counts(noise: Any) -> acc.Mechanism:
        return acc.Repeated(acc.Histogram(noise), shown)

    # In parallel: whether a record is held out is a coin of its own, and given it, neighbours
    # differ in what is trained on or in what is counted. δ(ε) is convex in the pair, so that the
    # whole costs at most the larger of the two. A certificate is quoted at any ε and composed with
    # others, so that the counts may cost no more than the run at the plan's ε and at others.
    if plan.selection is not None:  # what is counted of the best run is a part of that run
        plan = replace(plan, selection=None, preceding=None)
    run, how = plan.certify().mechanism, {"adjacency": plan.adjacency}
    epsilons = float(plan.epsilon()) * np.array(_SHARES)
    deltas = np.asarray(acc.delta(run, epsilons, **how)).tolist()
    stddev = max(
        float(acc.calibrate(counts, epsilon=epsilon, delta=delta, **how))
        for epsilon, delta in zip(epsilons.tolist(), deltas, strict=True)
        if delta > _LEAST
    )
    # Of a Gaussian the divergence is α/(2σ²) times what a record moves: it falls as 1/σ².
    orders = np.array(_ORDERS)
    times = np.asarray(acc.rdp(counts(stddev), orders, **how) / acc.rdp(run, orders, **how))
    return stddev * math.sqrt(max(1.0, float(times.max()) * (1 + 1e-6)))


def _noisy_accuracy(
    plan: Plan, held_out: tuple[int, int], key: Any, *, public: bool
) -> tuple[Any, float, list[str]]:
    """What an accuracy becomes before it is shown, its standard deviation, what that rests on."""
    known, records = held_out
    if public:
        given = "public: the held-out records: given by the user, or a published data set"
        return lambda accuracy, params: accuracy * known / records, 0.0, [given]
    import jax
    import numpy as np

    from dpjax._numerics.keys import fold_in_words
    from dpjax.data.private_table import SCORE_FOLD
    from dpjax.transforms import discrete_gaussian

    shown = len(np.unique([*range(0, plan.steps, _rows_apart(plan)), plan.steps]))
    stddev = _calibrate_counts(plan, shown)

    def perturb(accuracy: float, params: Any) -> float:
        """The same noise for the same parameters, wherever a run was interrupted."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(params):
            digest.update(np.asarray(leaf).tobytes())
        words = np.frombuffer(digest.digest()[:16], np.uint32).tolist()
        noise = int(discrete_gaussian(fold_in_words(key, SCORE_FOLD, *words), stddev))
        return min(max((round(accuracy * known) + noise) / records, 0.0), 1.0)

    rests = (
        f"a record is trained on or held out by a secret coin of its own; {shown} counts of the "
        f"{records} held-out records that are classified rightly, each with discrete Gaussian "
        f"noise of standard deviation {stddev:.6g}, cost such a record at most what the run costs "
        f"a record that is trained on (parallel composition), compared in δ at {_list(_SHARES)} "
        f"times the run's ε, where δ is above {_LEAST:g}, and in Rényi divergence of the orders "
        f"{_list(_ORDERS)}"
    )
    return perturb, stddev / records, [rests]
