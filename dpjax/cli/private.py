"""A run of `dpjax train` of which nothing is learned from the records but with noise.

The table's encoding is a `data.PrivateTable`, and held-out records are noisy counts. One key
decides the split, both, and the training: it is stored, bound to records and settings, before
anything is released, so that a run that is killed goes on with the same noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import pathlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dpjax.cli import inputs, released, settings
from dpjax.cli.choice import TwoModels, describe_no_trial
from dpjax.cli.options import ModelOption
from dpjax.cli.rows import Rows, read_rows
from dpjax.cli.texts import quote_path

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from jaxtyping import PRNGKeyArray

    from dpjax.accounting import Certificate, Disclosure
    from dpjax.cli.evaluation import Counts
    from dpjax.cli.options import RunOptions, TrainOptions
    from dpjax.cli.released import Released
    from dpjax.data import PrivateTable, Schema
    from dpjax.training import Checkpoints, Plan
    from dpjax.training.descent import DescentSettings

_HELD_OUT = 0.2  # a share of the persons or records
_ROWS = 10  # of the metrics: each is priced, and of private records a noisy count of its own
# Where held-out records are compared with the run: parts of its ε, the least δ, Rényi orders.
_SHARES, _LEAST = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), 1e-30
_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
_MOST_NUMBERS = 50  # that may be classes
_PUBLIC_RECORDS = "public: the held-out records: given by the user, or a published data set"
# What the key is bound to, besides the records and the seed.
_BOUND = (
    *("target", "task", "by", "epsilon", "delta", "model", "steps", "batch_size", "sampling"),
    *("clip_norm", "adjacency", "missing", "decimal", "thousands", "numeric", "encoding"),
    *("person", "records_per_person", "ignore"),
)
# What else where the rule for tables makes the settings, which it does not in runs of before 0.2.
_BY_RULE = ("learning rate", "momentum", "average")
# What of it may differ where the looks were taken and nothing was trained: they do not rest on it.
_CHANGEABLE = (
    *("task", "by", "model", "steps", "batch size", "sampling", "clip norm", "schema"),
    *_BY_RULE,
)
# Notes beside the key: that classes are counted with noise of their own, which no run of before 0.2
# did, that a search has begun, that the first look tells kinds, for which runs that were begun
# before had a look of its own, that hidden values share buckets, and that declared ranges have
# cells, as before they did not.
_OWN_LOOK, _SEARCHED = "classes_counted_apart", "searched"
_FIRST_LOOK, _BUCKETS = "kinds_by_the_first_look", "hidden_values_share_buckets"
_RANGE_CELLS = "declared_ranges_have_cells"


def prepare(options: RunOptions, folder: pathlib.Path) -> settings.Run:
    """The run, its table released; in a folder that holds a finished one, as that one was."""
    from dpjax import accounting as acc
    from dpjax import data

    settings.check_options(options)
    rows = read_rows(options, as_written=True)
    is_finished = options.resume and (folder / "certificate.json").exists()
    finished = _load_finished(folder) if is_finished else None
    key = _Key(options, folder, rows)
    parts = _divide(rows, key.value)
    count = len(parts.looked_at)
    if finished is not None:  # its key is gone, and with it which records it held out
        count = int(finished.certificate.declared.get("records", count))
    table, notes = _plan_table(options, rows, count, **key.rules)
    looks = table
    if finished is not None:
        looks = _match_table(finished.certificate, table, options, rows)
    cost, extra_delta = looks.mechanism, looks.extra_delta
    if key.kept is not None:
        notes, cost = (), key.kept.certificate.mechanism
        extra_delta = dict(key.kept.certificate.extra_delta)
    search = options.search  # None of a single run
    tables = _choose_tables(options, table)
    choice = settings.choose_choice(options, _linear(options), tables)
    plan = settings.plan_for(
        options,
        count,
        tables,
        choice=choice if search is None else None,
        selection=search
        and search.select(
            options,
            models=1 if choice is None else len(choice.rules),
            is_public=rows.held_out is not None,
        ),
        preceding=None if cost == acc.Composed(()) else cost,
        extra_delta=extra_delta,
    )
    if finished is not None:
        schema = data.described_schema(finished.encoding)
        return _complete(options, rows, parts, plan, table, schema, key, notes)
    key.store(plan)
    found = key.kept or _release(table, parts.looked_at, rows, plan, key)
    asked = replace(table.schema, classes=table.schema.classes or None)
    with _saying_what_is_spent(found, key):
        is_number = options.task == "regression"
        schema = released.choose_target(found.schema, asked, is_number=is_number)
        if not is_number:
            _check_classes(table, schema, options, rows, found.class_threshold)
        broken = [f"warning: {line}" for line in rows.shown]
        notes = (*broken, *notes, *_describe_hidden(table, schema))
        if table.schema.classes is None:
            notes = (*notes, _describe_classes(table, options, rows))
        run = _complete(options, rows, parts, plan, table, schema, key, notes)
    if search is not None or run.choice is not None:
        key.note(_SEARCHED)
    # The looks are releases too: the whole run was booked before them.
    return replace(run, options=replace(options, ledger=None))


class _Finished(NamedTuple):
    """What a finished run left that decides how it would be made again."""

    certificate: Certificate
    encoding: dict[str, Any]


def _load_finished(folder: pathlib.Path) -> _Finished:
    from dpjax import training

    found = training.load_model(folder)
    if found.certificate is None or found.encoding is None:
        raise ValueError(f"--out must hold a run of dpjax train to resume, got {folder}")
    return _Finished(found.certificate, found.encoding)


def _complete(
    options: RunOptions,
    rows: Rows,
    parts: _Parts,
    plan: Plan,
    table: PrivateTable,
    schema: Schema,
    key: _Key,
    notes: tuple[str, ...],
) -> settings.Run:
    """The run by the table that was released."""
    from dpjax import accounting as acc
    from dpjax import data
    from dpjax.data.schema import RELEASED
    from dpjax.training.plan import NOTHING_CHOSEN

    classes = len(schema.classes or ())
    model, learning_rate = settings.choose_model(options, classes)
    if model == "logistic" and classes != 2:
        model = "softmax"
    tables = _follow_table(options, table, plan, model, classes)
    if tables is not None:
        plan = replace(plan, clip_norm=tables.clip_norm)
        learning_rate = tables.learning_rate(plan.noise_multiplier)
    choice = settings.choose_choice(options, model, tables)
    last = plan if choice is None or options.search is not None else choice.last(plan)
    held_out = data.encode_released(parts.counted, schema, unknown=-1)
    counts, assumed = None, acc.Disclosure("held-out-public", _PUBLIC_RECORDS)
    if rows.held_out is None:
        sizes = len(held_out.classes), len(held_out)
        counts, assumed = _plan_counts(last, *sizes, key.value, chooses=last is not plan)
    certificate = settings.certify_run(
        plan,
        not_covered=[*rows.shown, *settings.list_chosen_disclosures(options)],
        assumptions=(*NOTHING_CHOSEN, *table.public, assumed, *_describe_persons(options)),
        declared={"model": model, "learning_rate": learning_rate, "encoding": table.encoding}
        | settings.declare_columns(options)
        | _declare_settings(options, tables, choice, plan.noise_multiplier),
    )
    return settings.Run(
        options,
        replace(data.encode_released(parts.train, schema), users=parts.persons),
        held_out,
        data.describe_encoding(schema, rows.schema, learned=RELEASED),
        plan,
        certificate,
        model,
        learning_rate,
        tables,
        choice,
        key=key.value,
        counts=counts,
        log_every=_rows_apart(last),
        notes=notes if choice else (*notes, *describe_no_trial(options, tables)),
    )


def _follow_table(
    options: RunOptions, table: PrivateTable, plan: Plan, model: str, classes: int
) -> DescentSettings | None:
    """The settings of a linear model by what was released; None where it has none of its own."""
    before = _choose_tables(options, table)
    if before is None:
        return None
    # The plan had to be made before the classes were released: its clip norm may be another's.
    found = settings.choose_tables(options, table.records, before.columns, model, classes)
    # Whole epochs may be more steps than were asked for; of a choice there are none.
    steps = plan.steps if options.model != ModelOption.auto else before.steps
    return replace(found or before, steps=steps)


def _declare_settings(
    options: RunOptions, tables: DescentSettings | None, choice: TwoModels | None, noise: float
) -> dict[str, float | str | int]:
    """What a certificate declares of the descent, of a choice of models, and of a search."""
    search = options.search
    rules = [tables] if choice is None else [*choice.rules.values()]
    return (
        (tables.declare(noise) if tables else settings.declare_momentum(options))
        | (choice.declare(is_search=search is not None) if choice else {})
        | (search.describe(rules, noise) if search else {})
    )


def _choose_tables(options: RunOptions, table: PrivateTable) -> DescentSettings | None:
    """The settings by the rule before any class is known, as of two."""
    columns = len(table.columns) - sum(one.kind == "ignore" for one in table.schema.columns)
    return settings.choose_tables(options, table.records, columns, _linear(options), 2)


def _linear(options: RunOptions) -> str:
    """The model that was asked for before any class is known; of a choice the linear one."""
    asked = options.model
    return "logistic" if asked in (None, ModelOption.auto) else str(asked)


def _release(
    table: PrivateTable, frame: pd.DataFrame, rows: Rows, plan: Plan, key: _Key
) -> Released:
    """Look at the records, and keep what was found with its price."""
    from dpjax import accounting as acc
    from dpjax._numerics.keys import name_of_key

    schema = table.release(frame, key.value)
    certificate = released.certify_looks(table, plan, name_of_key(key.value)[0])
    found = released.Released(schema, certificate, table.class_threshold)
    if table.mechanism != acc.Composed(()):
        key.keep(found, rows.schema)
    return found


@contextlib.contextmanager
def _saying_what_is_spent(found: Released, key: _Key) -> Iterator[None]:
    """Say of a run that is refused after its looks what these cost, and how it goes on."""
    from dpjax import accounting as acc

    try:
        yield
    except (ValueError, acc.UnsupportedQuery) as error:
        if key.has_trained or found.certificate.mechanism == acc.Composed(()):
            raise  # more than the looks was released, or nothing
        booked = key.book_looks(found.certificate)
        folder, is_search = key.folder.parent.parent, key.options.search is not None
        spent = (
            f"nothing was trained; {found.describe_cost()}{booked}, and {folder / released.FILE} "
            f"keeps what they found: the same command with --out {quote_path(folder)} --resume "
            "goes on from it without another look, also with another "
            f"{'' if is_search else '--task, '}--classes, --model, --by, --steps"
            f"{' or --batch-size' if is_search else ', --batch-size or --clip-norm'}"
        )
        said = f"{error}; {spent}"
        raise ValueError(said) from None


def _match_table(
    certificate: Certificate, table: PrivateTable, options: RunOptions, rows: Rows
) -> PrivateTable:
    """The table whose looks a finished run took: as now, as before 0.2, or for another target."""
    from dpjax import accounting as acc

    whole, schema = certificate.mechanism, rows.schema
    if not isinstance(whole, acc.Composed):
        return table
    count = table.records
    targets: list[dict[str, Any]] = [{}, {"classes": None, "target_range": None}, {"classes": ()}]
    for own_look, rough_kinds in ((True, False), (True, True), (False, True)):
        for target in targets:
            other = rows._replace(schema=schema and replace(schema, **target))
            one, _ = _plan_table(options, other, count, own_look=own_look, rough_kinds=rough_kinds)
            if one.mechanism == whole.mechanisms[0]:
                return one
    return table


class _Key:
    """The key of a run: a stored one where there is one, else one that is stored before use."""

    def __init__(self, options: RunOptions, folder: pathlib.Path, rows: Rows):
        import jax

        from dpjax.transforms import fresh_key

        self.options, self.folder, self.rows = options, folder / "checkpoint" / "table", rows
        seed = options.seed
        self.value: PRNGKeyArray = fresh_key() if seed is None else jax.random.key(seed)
        self.is_stored = bool(options.resume and (self.folder / "noise_key.json").exists())
        self.has_own_look, self.has_rough_kinds, self.has_trained = True, False, False
        self.has_buckets, self.has_range_cells = True, True
        self.kept: Released | None = None  # by an earlier process
        if self.is_stored:
            self._read_notes()
            self.store()

    def _read_notes(self) -> None:
        """What an earlier process has done with the key."""
        with self._open() as notes:
            self.has_own_look = notes.noted(_OWN_LOOK, False)
            self.has_rough_kinds = not notes.noted(_FIRST_LOOK, False)
            self.has_buckets = notes.noted(_BUCKETS, False)
            self.has_range_cells = notes.noted(_RANGE_CELLS, False)
            self.kept = released.read_released(self.folder.parent.parent, notes)
            trained = (self.folder.parent / "noise_key.json").exists()
            self.has_trained = trained or notes.noted(_SEARCHED, False)

    @property
    def rules(self) -> dict[str, bool]:
        """The rules, of today or of before, by which the table is released."""
        return {
            "own_look": self.has_own_look,
            "rough_kinds": self.has_rough_kinds,
            "buckets": self.has_buckets,
            "cells": self.has_range_cells,
        }

    def _open(self) -> contextlib.closing[Checkpoints]:
        from dpjax.training import Checkpoints

        return contextlib.closing(Checkpoints(self.folder))

    def note(self, what: str) -> None:
        """Note beside the key what was done with it."""
        with self._open() as notes:
            notes.noted(what, True)

    def keep(self, found: Released, declared: Schema | None) -> None:
        """Keep a released table for whoever resumes the run."""
        with self._open() as notes:
            released.write_released(self.folder.parent.parent, found, declared, notes)

    def store(self, plan: Plan | None = None) -> None:
        """Bind the key to what it is used with, and book the plan; twice is once."""
        from dpjax.training.booking import book_once, certify_alone, open_ledger

        ledger = None
        if plan is not None and self.options.ledger is not None:  # refused before a folder is made
            ledger = open_ledger(self.options.ledger, plan, resume=self.is_stored)
        inputs.check_writable(self.folder.parent.parent)
        # What the looks do not rest on may differ as long as nothing else was done with the key.
        is_open = self.is_stored and not self.has_trained
        may_differ = is_open and self.has_own_look and self.kept is not None
        with self._open() as store:
            # Before the key, which whoever resumes finds: a key without the note is of before 0.2.
            if not (self.folder / "noise_key.json").exists():
                store.noted(_OWN_LOOK, True)
                store.noted(_FIRST_LOOK, True)
                store.noted(_BUCKETS, True)
                store.noted(_RANGE_CELLS, True)
                store.noted(settings.BY_RULE, self.options.by_rule)
            self.value = store.bind(
                self.value,
                self._identity,
                resume=self.options.resume,
                changeable=_CHANGEABLE if may_differ else (),
            )
            if plan is not None and ledger is not None:
                run = certify_alone(plan, self._name())
                book_once(run, store, ledger, corrects=is_open)

    def book_looks(self, looks: Certificate) -> str:
        """Book the looks alone in the place of the run that ends with them, and say so."""
        from dpjax.accounting import BudgetExceeded, LedgerFile
        from dpjax.training.booking import book_once

        if self.options.ledger is None:
            return ""
        file = LedgerFile(self.options.ledger)
        try:
            with self._open() as store:
                book_once(looks, store, file, corrects=True)
        except BudgetExceeded:  # of a ledger whose runs were all declared beforehand
            return f" (in {file.path} the whole run stays booked)"
        return f" (booked in {file.path})"

    def _name(self) -> tuple[str, bool]:
        """The name of the key; drawn by chance also where an earlier process drew it."""
        from dpjax._numerics.keys import name_of_key

        return name_of_key(self.value, drawn=self.options.seed is None)

    def _identity(self, key: PRNGKeyArray) -> dict[str, str | int | None]:
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
        if self.options.by_rule:
            names = (name.replace(" ", "_") for name in _BY_RULE)
            bound |= dict(
                zip(_BY_RULE, (str(getattr(self.options, n)) for n in names), strict=True)
            )
        bound |= {} if self.options.search is None else {"search": repr(self.options.search)}
        found = {
            "data": code.hexdigest(),
            "seed": self.options.seed,
            **bound,
            "schema": repr(self.rows.schema),
        }
        return found | ({"columns": self._describe_columns()} if self.has_own_look else {})

    def _describe_columns(self) -> str:
        """What is declared besides the target."""
        from dpjax.data import Schema

        declared, target = self.rows.schema or Schema(()), self.rows.target
        columns = tuple(column for column in declared.columns if column.name != target)
        open_target: dict[str, Any] = {
            "target": None,
            "classes": None,
            "aliases": (),
            "target_range": None,
        }
        return repr(replace(declared, columns=columns, **open_target))


class _Parts(NamedTuple):
    """What is done with the rows: every person, or record by itself, is in one part."""

    train: pd.DataFrame
    persons: np.ndarray | None  # of its rows; None where the record is protected
    looked_at: pd.DataFrame  # of those that are trained on, one row each
    counted: pd.DataFrame  # of those that are held out, one row each; or a file of its own


def _divide(rows: Rows, key: PRNGKeyArray) -> _Parts:
    """Hold out a share of the persons, and draw the row of each that counts and looks may see."""
    import numpy as np

    from dpjax.data import DataError
    from dpjax.data.held_out import LEAST_DIVIDED, draw_held_out

    frame, persons, given = rows.train, rows.persons, rows.held_out
    owner = np.arange(len(frame)) if persons is None else persons
    # One row moves one cell of each histogram by one, however many a person has.
    one = owner if persons is None else _draw_row_of_each(key, persons)
    if given is None:
        if len(one) < LEAST_DIVIDED:  # by their number alone, and by no coin
            raise DataError(
                f"{len(one)} person or record is too few to hold out {_HELD_OUT:.0%}: --data must "
                f"have {LEAST_DIVIDED} at least, or --test name a file of held-out records"
            )
        held = draw_held_out(key, len(one), _HELD_OUT)
    else:
        held = np.zeros(len(one), bool)
    used = ~held[owner]
    counted = frame.iloc[one[held]] if given is None else given
    of_rows = None if persons is None else persons[used]
    return _Parts(frame[used], of_rows, frame.iloc[one[~held]], counted)


def _draw_row_of_each(key: PRNGKeyArray, persons: np.ndarray) -> np.ndarray:
    """A row of each person, each of them as likely: it depends on no row of another person."""
    import jax
    import numpy as np

    from dpjax._numerics.keys import fold_in_words
    from dpjax.data.private_table import ROW_FOLD

    bits = np.asarray(jax.random.bits(fold_in_words(key, ROW_FOLD), (len(persons), 2), np.uint32))
    order = np.lexsort((bits[:, 0], bits[:, 1], persons))  # by person, within one by chance
    return order[np.unique(persons[order], return_index=True)[1]]


def _describe_persons(options: TrainOptions) -> list[Disclosure]:
    """What a certificate of persons rests on beside what one of records does."""
    from dpjax.accounting import Disclosure

    if not options.person:
        return []
    said = [
        f"a person is all rows of one value of {options.person!r}, and rows without one are left "
        "out; how many persons there are is public, and how many rows is not",
        "ids that are one number (17, 17.0, 017) are one person, and ids that are another text are "
        "not: who is 17 in one row and P17 in another is protected as two persons",
        "of each person one row, drawn by the run's key, is counted for ranges, categories, "
        "classes and the held-out accuracy, and the first rows in the file are trained on, at most "
        f"{options.records_per_person}; a person is trained on or held out with all rows",
    ]
    return [Disclosure("unit", text) for text in said]


def _plan_table(
    options: RunOptions,
    rows: Rows,
    count: int,
    *,
    own_look: bool,
    rough_kinds: bool,
    buckets: bool = True,
    cells: bool = True,
) -> tuple[PrivateTable, tuple[str, ...]]:
    """The looks at so many records, and what the user should hear of them."""
    from dpjax import accounting as acc
    from dpjax import data

    schema = replace(rows.schema or data.Schema(()), target=rows.target)
    known = [column.name for column in schema.columns if column.name in rows.train.columns]
    others = [n for n in rows.train.columns if n not in known and n != rows.target]
    if not others and all(column.kind == "ignore" for column in schema.columns):
        raise data.DataError("the schema must leave features, got all columns but the target out")
    numeric = None if options.numeric is None else options.numeric.split(",")
    if numeric is not None:
        named = {"", rows.target} if options.task == "regression" else {""}
        numeric = tuple(name for name in map(str.strip, numeric) if name not in named)
    usual = "bins-and-line" if options.by_rule else "tail-bins"
    encoding = options.encoding or ("asinh" if options.model == "mlp" else usual)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        table = data.PrivateTable.for_budget(
            [*known, *others],
            schema,
            count,
            epsilon=options.epsilon,
            delta=settings.choose_delta(options, count),
            adjacency=acc.Adjacency(options.adjacency),
            target_share=None if own_look else 0.0,
            rough_kinds=rough_kinds,
            numeric=numeric,
            encoding=encoding,
            buckets=buckets and encoding == "bins-and-line",
            range_cells=cells and encoding == "bins-and-line",
        )
    return table, tuple(f"warning: {warning.message}" for warning in caught)


def _check_classes(
    table: PrivateTable,
    schema: Schema,
    options: RunOptions,
    rows: Rows,
    threshold: int,
) -> None:
    """Refuse what was released where it is a measured number, or where noise hides the classes.

    A model of one class is a constant: it is worth no ε, and the rest of the budget is kept.
    """
    classes, target = schema.classes or (), table.schema.target
    if table.schema.classes is not None:
        return
    numbers = released.parse_classes(schema)  # computed from what was released, as is all of this
    is_search = options.search is not None  # of classifiers: no advice may name what it lacks
    if numbers and len(numbers) > _MOST_NUMBERS:
        other = "" if is_search else ", or --task must be regression"
        raise ValueError(
            f"--classes must declare the classes of {target!r}{other} for a target of "
            f"{len(classes)} different numbers, got classification"
        )
    if len(classes) < 2:
        raise ValueError(
            f"--classes must declare the classes of {target!r} where noise hides them, such as "
            f"no,yes, got {'one class' if classes else 'no class'} with a count above "
            f"{threshold:,}: the model would be a constant, which is worth no ε; "
            f"{_describe_classes(table, options, rows)}; "
            f"{'' if is_search else 'if the target is a number give --task regression, else '}"
            "give more records or a larger --epsilon"
        )


def _describe_hidden(table: PrivateTable, schema: Schema) -> list[str]:
    """What the noise hides of what was released, and what to give."""
    from dpjax.data.schema import remark_on

    names: dict[str, list[str]] = {}
    for column in schema.columns:
        if column.released and (remark := remark_on(column)):
            names.setdefault(remark, []).append(column.name)
    notes = [f"warning: {', '.join(listed)}: {remark}" for remark, listed in names.items()]
    if notes:
        notes.append(
            "leave ids, dates and free text out by --ignore, or name whose a row is by --person; "
            'numbers such as "3.326,60" need --decimal , and --thousands . together'
        )
    notes += _describe_other_marks(schema)
    return notes


def _describe_other_marks(schema: Schema) -> list[str]:
    """Columns whose released texts are all numbers by other marks, and by which."""
    from dpjax.cli.schema import MARKS
    from dpjax.data.cells import parse_number

    def reads(texts: list[str], decimal: str, thousands: str | None) -> bool:
        return all(parse_number(text, decimal, thousands) for text in texts)

    notes = []
    for column in schema.columns:
        texts = [text for text in column.categories or () if text]
        marks = [found for found in MARKS if reads(texts, *found)]
        if not texts or not marks or reads(texts, schema.decimal, schema.thousands):
            continue
        decimal, thousands = marks[0]
        apart = f" --thousands {thousands}" if thousands else ""
        notes.append(
            f"warning: {column.name}: texts that are all numbers by --decimal {decimal}{apart}"
        )
    return notes


def _describe_classes(table: PrivateTable, options: RunOptions, rows: Rows) -> str:
    """Say from which size on a class is seen, which follows from public numbers alone."""
    from dpjax.data import class_sizes

    def make(epsilon: float, records: int) -> PrivateTable:
        asked = replace(options, epsilon=epsilon)
        own_look = table.target_stddev is not None
        found, _ = _plan_table(
            asked, rows, records, own_look=own_look, rough_kinds=table.rough_kinds
        )
        return found

    seen = class_sizes.describe_seen(table, options.epsilon, make)
    return f"classes of {table.schema.target!r}: {seen}; --classes declares those that are public"


def _rows_apart(plan: Plan) -> int:
    """Steps between two rows of the metrics; of the best run of a search the last one alone."""
    return plan.steps if plan.selection else max(1, math.ceil(plan.steps / _ROWS))


def _list(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _calibrate_counts(plan: Plan, counts: Counts) -> float:
    """The least noise by which counts of held-out records cost nowhere more than the run."""
    import numpy as np

    from dpjax import accounting as acc

    # In parallel: whether a record is held out is a coin of its own, and given it, neighbours
    # differ in what is trained on or in what is counted. δ(ε) is convex in the pair, so that the
    # whole costs at most the larger of the two. A certificate is quoted at any ε and composed with
    # others, so that the counts may cost no more than the run at the plan's ε and at others.
    if plan.selection is not None:  # what is counted of the best run is a part of that run
        plan = replace(plan, selection=None, preceding=None)
    run = settings.certify_run(plan, declared={}, not_covered=()).mechanism
    how = {"adjacency": plan.adjacency}
    epsilons = float(plan.epsilon()) * np.array(_SHARES)
    deltas = np.asarray(acc.delta(run, epsilons, **how)).tolist()
    stddev = 0.0
    for epsilon, delta in zip(epsilons.tolist(), deltas, strict=True):
        # δ falls with the noise: what keeps this one already need not be calibrated to it, and a δ
        # of 1, which a run of a very large ε has at less of it, is kept by any noise.
        kept = stddev and acc.delta(counts.mechanism(stddev), epsilon, **how) <= delta
        if _LEAST < delta < 1.0 and not kept:
            least = float(acc.calibrate(counts.mechanism, epsilon=epsilon, delta=delta, **how))
            stddev = max(stddev, least)
    # The divergence of a discrete Gaussian is at most α/(2σ²) times the square of what a record
    # moves (Canonne, Kamath, Steinke 2020, also of vectors): that falls as 1/σ².
    orders, some = np.array(_ORDERS), stddev or 1.0
    own = acc.rdp(counts.mechanism(some), orders, **how)
    times = np.asarray(own / acc.rdp(run, orders, **how))
    return max(stddev, some * math.sqrt(float(times.max()) * (1 + 1e-6)))


def _plan_counts(
    plan: Plan, classes: int, records: int, key: PRNGKeyArray, *, chooses: bool = False
) -> tuple[Counts, Disclosure]:
    """How held-out records are counted, and what that rests on."""
    from dpjax.accounting import Disclosure
    from dpjax.cli.evaluation import Counts

    shown = len({*range(0, plan.steps, _rows_apart(plan)), plan.steps})
    counts = Counts(classes, shown, chooses=chooses)
    counts = replace(counts, stddev=_calibrate_counts(plan, counts), key=key)
    rests = (
        "a record is trained on or held out by a secret coin of its own, and how many are is "
        "public. Where the coins leave a part empty, one record drawn by chance goes there. "
        f"{counts.describe(records)}. This costs such a record at most what the run costs a record "
        "that is trained on (parallel composition). The two are compared in δ at "
        f"{_list(_SHARES)} times the run's ε, where δ is above {_LEAST:g}, and in Rényi divergence "
        f"of the orders {_list(_ORDERS)}"
    )
    return counts, Disclosure("held-out-by-coin", rests)
