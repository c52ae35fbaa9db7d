"""Cells of tables: how numbers and texts are written, and refusals that name a cell by its line.

For the readers and encoders of this package, and for estimators, whose tables are in memory.
"""

from __future__ import annotations

import datetime
import functools
import pathlib
import re
import unicodedata
from collections.abc import Hashable, Iterable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dpjax.data.schema import Schema


class DataError(ValueError):
    """Data, or a schema, that cannot be used; the message says what to change.

    Example:
        >>> raise DataError("no rows")
        Traceback (most recent call last):
        ...
        dpjax.data.cells.DataError: no rows
    """


# What pandas calls a column of objects that are all numbers; a missing one is None or NaN.
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")


_MONEY = (
    "[A-Z]{0,2}[$€£¥₹₽₩₺₪₫₴฿¢]|euros?|dollars?|USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|RUB|TRY"
    "|BRL|MXN|ZAR|KRW|SGD|HKD|ILS|THB|Fr\\.?|kr|zł|Rs\\.?"
)
_UNITS = (
    "%|‰|percent|pct|[kMG]B|kg|mg|µg|lbs?|oz|km|cm|mm|mi|ft|in|ml|dl|hrs?|hours?|min|sec|ms|days?|weeks?|months?|yrs?"
    "|years?|°C?|°F|bpm|mmHg|m²|kcal|cal|kW|kWh"
)
# Right behind a number these are sizes and codes as well: 3M, 5d.
_LETTERS = "[gtmlhsdkKMW]"
# A number as a person writes it: a currency, a unit, a percentage, thousands apart, a comma.
_WRITTEN = re.compile(
    rf"""\(?\s*[+−-]?\s*(?:{_MONEY})?\s*[+−-]?
    (?:\d+(?:[ .,'’_]\d{{3}})*|\d{{1,2}}(?:,\d\d)+,\d{{3}})(?:[.,]\d+)?
    (?:\s*(?i:{_MONEY}|{_UNITS})\.?|\s+{_LETTERS}|(?P<letter>{_LETTERS}))?\s*\)?""",
    re.VERBOSE,
)
# One number, with marks before it and anything but a digit behind it, an ordinal's ending excepted.
_ONE_NUMBER = re.compile(
    r"(?P<before>[^\w\s#§]*)\s*\d+(?:[ .,'’_]\d+)*"
    r"(?P<rest>(?!(?:st|nd|rd|th)\b)(?P<letter>[^\W\d_¼-¾⅐-⅞])?\D*)"
)
UNNAMED = "Unnamed: "  # with its place, what pandas calls a column without a name
_LONGEST_COMPOSED = 10_000  # characters
_SIZES = 20  # so many different texts such as 3M are sizes or codes, more are numbers
HOW = (
    "say how cells are written by missing, decimal and thousands in a schema (--missing, "
    "--decimal, --thousands)"
)


def class_name(value: object) -> str:
    """`1.0` and `1` are the same class, a midnight is its date, and blanks at the ends are none."""
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, datetime.datetime) and value is not pd.NaT:
        return str(value).removesuffix(" 00:00:00")
    if isinstance(value, bool | np.bool_):  # which is an int, and asks to be a float
        return str(bool(value))
    if isinstance(value, int | np.integer):
        return str(int(value))  # a float would make one class of two beyond 2^53
    number: Any = value  # of any library
    if isinstance(number, float) or hasattr(number, "is_integer"):
        number = float(number)
        return str(int(number)) if number.is_integer() else str(number)
    return tidy_text(str(value))


def tidy_text(cell: str) -> str:
    """A text as it is compared: composed letters (NFC), one space for blanks, none at the ends."""
    # To put marks in order takes time by the square of how many follow each other: of 10^7 days.
    is_short = len(cell) <= _LONGEST_COMPOSED
    return " ".join((unicodedata.normalize("NFC", cell) if is_short else cell).split())


# What Unicode lets a font show as nothing (Default_Ignorable_Code_Point): formats (Cf), which are
# asked for by category, and these joiners, fillers, variation selectors and reserved places.
_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)


def strip_invisible(text: str) -> str:
    """What one sees of a text: no zero-width, formatting or control characters."""
    if text.isascii() and text.isprintable():
        return text
    hidden = ("Cf", "Cc")
    text = _IGNORED.sub("", text.replace("\u2800", " "))  # the braille cell without a dot
    return tidy_text("".join(c for c in text if unicodedata.category(c) not in hidden))


_MINUS = re.compile("[−‐-—]")  # of typography, and the dashes that are written for one


@functools.cache
def _numbers(decimal: str, thousands: str | None) -> re.Pattern[str]:
    point, apart = re.escape(decimal), re.escape(thousands or "")
    groups = rf"[0-9]{{1,3}}(?:{apart}[0-9]{{2,3}})*{apart}[0-9]{{3}}|" if thousands else ""
    return re.compile(
        rf"[+-]?(?:(?:{groups}[0-9]+)(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?"
    )


def parse_number(cell: str, decimal: str = ".", thousands: str | None = None) -> str | None:
    """The number that a cell says, as Python writes numbers; None if it says none."""
    # A typographic minus or apostrophe is meant as the plain one, and any blank as a blank.
    cell = _MINUS.sub("-", strip_invisible(tidy_text(cell))).replace("’", "'")
    thousands = {"’": "'"}.get(thousands or "", " " if (thousands or "").isspace() else thousands)
    if not _numbers(decimal, thousands).fullmatch(cell):
        return None
    return cell.replace(thousands or "\0", "").replace(decimal, ".")


def parse_decimal(cell: str) -> Decimal | None:
    """The exact value that a cell says, the same of 01 and 1; None if it says none."""
    try:
        return None if (plain := parse_number(cell)) is None else Decimal(plain)
    except InvalidOperation:  # an exponent that `decimal` does not hold
        return None


_ZONES_ARE_READ_WHOLE = int(pd.__version__.split(".")[0]) >= 3


def with_readable_times(column: pd.Series) -> pd.Series:
    """The column, with no time that ends the process when pandas 2 looks its zone up: missing."""
    # Before the first nanosecond that pandas counts it reads past the end of a named zone's table.
    # Beyond the year 9,999 pandas 2 gives a year of more digits, where pandas 3 refuses the time.
    if not isinstance(column.dtype, pd.DatetimeTZDtype) or _ZONES_ARE_READ_WHOLE:
        return column
    first, beyond = np.array(["1677-09-22", "10000-01-01"], dtype="M8[s]")
    seconds = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy().astype("M8[s]")
    return column.where((first <= seconds) & (seconds < beyond))


def find_readable_times(frame: pd.DataFrame) -> dict[Any, pd.Series]:
    """The columns of times in a zone as `with_readable_times` leaves them, those it changed."""
    read = {name: (values, with_readable_times(values)) for name, values in frame.items()}
    return {name: after for name, (before, after) in read.items() if after is not before}


def canonical_text(cell: str) -> str:
    """One text of all that name the same value: what one sees of it, or of a number its value."""
    seen = strip_invisible(tidy_text(cell))
    number = parse_decimal(seen)
    if number is None:
        return seen
    # `Decimal.normalize` would round, to as many digits as somebody has set in this process.
    sign, digits, exponent = number.as_tuple()
    written = "".join(map(str, digits)).lstrip("0")
    kept = written.rstrip("0")
    if not kept:
        return "0"
    return f"{'-' * sign}{kept}e{int(exponent) + len(written) - len(kept)}"


def parse_cells(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The table with its cells read as the schema says they are written."""
    # A cell that stands for no value becomes missing, and a column of texts one of numbers where
    # every cell is one; a declared number that holds another text is refused. A released column is
    # left as it is: its cells are read one by one, by `single_cells`.
    marks = schema.decimal, schema.thousands
    usual = not schema.missing and marks == (".", None)
    kinds = {column.name: column.kind for column in schema.columns}
    released = {column.name for column in schema.columns if column.released}
    kinds[schema.target or ""] = "number" if schema.classes == () else "category"
    codes = [float(n) for n in map(parse_number, schema.missing) if n is not None]
    changed: dict[Any, Any] = find_readable_times(frame)
    errors: list[DataError] = []
    for name in [name for name in frame.columns if name not in released]:
        values, kind = changed.get(name, frame[name]), kinds.get(name)
        if pd.api.types.is_numeric_dtype(values):
            if codes and values.isin(codes).any():
                changed[name] = values.mask(values.isin(codes))
            continue
        # In plain Python: of short columns, of which there may be many, pandas' calls are slow.
        row = list(values.to_numpy(object))
        types = set(map(type, row))
        several = [] if types <= {str, float} else [not isinstance(c, Hashable) for c in row]
        if any(several) and kind != "ignore":
            found = type(values.iloc[several.index(True)]).__name__
            error = DataError(
                f"column {name!r} holds a {found} {describe_place(frame, several)}; write one "
                "value in a cell, each of several in a column of its own"
            )
            errors.append(error)
            continue
        texts = row
        if types != {str}:
            absent = values.isna().tolist()
            texts = [cell for cell, gone in zip(row, absent, strict=True) if not gone]
            if not all(isinstance(cell, str) for cell in texts):
                continue
        # A table in memory may say itself that its texts are categories.
        if usual and (kind == "category" or isinstance(values.dtype, pd.CategoricalDtype)):
            continue
        different = dict.fromkeys(texts)
        listed = {cell for cell in different if tidy_text(cell) in schema.missing}
        found = {cell: parse_number(cell, *marks) for cell in different if cell not in listed}
        bad = {cell for cell, number in found.items() if number is None}
        if kind == "number" and bad:
            errors.append(not_a_number_error(frame, name, [cell in bad for cell in row]))
        elif kind == "number" or (kind is None and not bad):
            if marks == (".", None) and (error := unclear_point_error(frame, name, values)):
                errors.append(error)
                continue
            numbers = pd.Series([found.get(cell, np.nan) for cell in row], values.index, object)
            changed[name] = pd.to_numeric(numbers)
        elif listed:
            changed[name] = values.astype(object).mask(values.isin(listed), None)
    raise_together(errors)
    if not changed:
        return frame
    # At once: to set one column after another takes time by the square of how many there are.
    read = pd.DataFrame({n: changed.get(n, values) for n, values in frame.items()}, frame.index)
    read.attrs = frame.attrs
    return read


# A point that may stand before thousands as well as decimals, and a whole number without one.
_POINT, _SHORT = re.compile(r"[+-]?[1-9][0-9]{0,2}\.[0-9]{3}"), re.compile(r"[+-]?[0-9]{1,3}")


def find_unclear_point(texts: Iterable[str]) -> tuple[str, str] | None:
    """Two cells of a column such as 1.000 and 999: a thousand, or one; None where a cell decides.

    Numbers of three decimals are written with all of them, 999.000, so that whole numbers beside
    1.000 speak for thousands. A cell such as 1.5, 0.125 or 1234 is none of such a column.
    """
    point = whole = None
    for text in texts:
        cell = tidy_text(text)
        if _POINT.fullmatch(cell):
            point = point or text
        elif _SHORT.fullmatch(cell):
            whole = whole or text
        else:
            return None
    return None if point is None or whole is None else (point, whole)


def may_be_thousands(values: pd.Series) -> bool:
    """Whether a column of floats may hold 1.000 and 999: the cells themselves say it."""
    if values.dtype.kind != "f":
        return False
    numbers = np.abs(values.to_numpy()[values.notna()])
    if not np.all((numbers == 0) | ((numbers >= 1) & (numbers < 1000))):
        return False
    # 1000 · 1.005 is a whole number up to rounding alone.
    return bool(np.allclose(1000 * numbers, np.rint(1000 * numbers), rtol=0.0, atol=1e-6))


def unclear_point_error(frame: pd.DataFrame, name: str, texts: pd.Series) -> DataError | None:
    """The error for a column, by its cells as they are written, whose points may be either."""
    if (found := find_unclear_point(texts.dropna().unique())) is None:
        return None
    place = describe_place(frame, texts == found[0])
    return DataError(
        f"column {name!r} holds {found[0]} {place}, and {found[1]}: say whether the point stands "
        'before thousands, by decimal = "," and thousands = "." in a schema (--decimal "," '
        '--thousands "."), or before decimals, by thousands = "," (--thousands ",")'
    )


def not_a_number_error(frame: pd.DataFrame, name: str, bad: ArrayLike) -> DataError:
    """The error for a column of numbers of which the flagged cells are none."""
    bad = np.asarray(bad)
    cell = frame[name][bad].iloc[0]
    advice = f"correct the cell, {HOW}, or declare the column a category there"
    if pd.isna(cell) or isinstance(cell, float):
        advice = "drop or complete these rows"
    if pd.isna(cell):
        advice += ', or give a schema with missing = [""] (--missing "")'
    return DataError(
        f"column {name!r} holds {cell} {describe_place(frame, bad)} ({np.sum(bad)} such rows): "
        f"not a finite number; {advice}"
    )


def find_gap(frame: pd.DataFrame, name: str, kind: str, missing: bool) -> DataError | None:
    """The error for a column of that kind in which a cell holds nothing, where none may."""
    values = frame[name]
    absent = values.isna().to_numpy()
    if kind == "number":
        finite = False if is_not_real(values) else np.isfinite(to_floats(values))
        bad = ~(finite | (absent & missing))
        return not_a_number_error(frame, name, bad) if bad.any() else None
    if missing or not absent.any():
        return None
    return DataError(
        f"column {name!r} has no value {describe_place(frame, absent)}; complete it, write a "
        'category such as \'unknown\' there, or give a schema with missing = [""] (--missing "")'
    )


def find_unlabelled(frame: pd.DataFrame, target: str) -> DataError | None:
    """The error for records without a class."""
    absent = frame[target].isna()
    if not absent.any():
        return None
    place = describe_place(frame, absent)
    return DataError(f"the target {target!r} is missing {place}; drop or complete the row")


def raise_together(errors: list[DataError]) -> None:
    """Raise one error that says them all, where there are any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "".join(f"\n  {error}" for error in errors)
        raise DataError(f"{len(errors)} columns need a decision:{lines}")


def check_visible(what: str, texts: Iterable[str]) -> None:
    """Refuse texts that differ by nothing one can see, such as a zero-width space."""
    seen: dict[str, str] = {}
    for text in texts:
        other = seen.setdefault(strip_invisible(text), text)
        if other != text:
            raise DataError(
                f"{what} holds {other!a} and {text!a}, which look alike; write one of them"
            )


class Lines:
    """Which line of which file a row was read from, counted as an editor does."""

    def __init__(self, path: pathlib.Path, numbers: np.ndarray):
        self.path, self.numbers = path, numbers

    # Kept in the frame's `attrs`, which pandas copies along: one copy is enough.
    def __deepcopy__(self, memo: dict[int, object]) -> Lines:
        return self

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def describe_place(frame: pd.DataFrame, flags: ArrayLike) -> str:
    """The place of the first flagged row: the line of its file, or its number without a file."""
    position = int(np.argmax(np.asarray(flags)))
    lines, index = frame.attrs.get("lines"), frame.index
    whole = isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
    if lines is None or not whole or len(lines.numbers) != len(frame):
        return f"in row {position}"
    return f"in line {lines.numbers[position]} of {lines.path.name}"


def check_column_names(frame: pd.DataFrame) -> None:
    """Refuse names that are no texts (of several levels they are tuples) or are given twice."""
    other = [name for name in frame.columns if not isinstance(name, str)]
    if other:
        raise DataError(
            f"the columns must have texts for names, got {other[0]!r}; give each one, by "
            'frame.columns = ["age", …]'
        )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"the table has two columns named {twice[0]!r}")


def list_columns(frame: pd.DataFrame) -> str:
    """The names of a table for a message, the first of them where there are many."""
    return ", ".join(map(str, frame.columns[:20]))


def is_not_real(values: pd.Series) -> bool:
    """Whether a column holds dates, times or complex numbers, of which pandas makes real ones."""
    kind = values.dtype
    if isinstance(kind, pd.CategoricalDtype):
        kind = kind.categories.dtype
    if isinstance(kind, pd.PeriodDtype) or getattr(kind, "kind", "O") in "mMc":
        return True
    return bool(pd.api.types.is_object_dtype(kind)) and any(isinstance(c, complex) for c in values)


def check_kind(frame: pd.DataFrame, name: str, schema: Schema) -> str:
    """Whether an undeclared column is a number or a category; a spoilt one is refused."""
    values = frame[name]
    if name.startswith(UNNAMED):
        raise DataError(
            f"column {name!r} has no name in the file, as an index written by pandas has none "
            '(to_csv(index=False)); name it, or leave it out by kind = "ignore" in a schema'
        )
    if values.isna().all():
        raise DataError(f'column {name!r} is empty; leave it out by kind = "ignore" in a schema')
    if pd.api.types.is_complex_dtype(values):
        raise DataError(f"column {name!r} holds complex numbers; give two columns of real ones")
    if pd.api.types.is_numeric_dtype(values):
        return "number"
    if pd.api.types.infer_dtype(values, skipna=True) in _NUMBERS:
        return "number"
    # One cell such as "4O" turns a column of numbers into text, and as a category every number of
    # it would become a feature of its own. So a column of which most cells are numbers has to be
    # all numbers, unless a schema says otherwise.
    cells = [str(cell) for cell in values[values.notna()]]
    marks, kinds = (schema.decimal, schema.thousands), set(cells)
    plain = {cell for cell in kinds if parse_number(cell, *marks) is not None}
    written = {cell: _WRITTEN.fullmatch(strip_invisible(tidy_text(cell))) for cell in kinds - plain}
    sizes = len(kinds) <= _SIZES
    numbers = plain | {c for c, one in written.items() if one and not (sizes and one["letter"])}
    bad = [cell for cell in cells if cell not in plain]
    meant = sum(cell in numbers for cell in cells)
    if 2 * meant <= len(cells):  # whatever the unit is, it stands in nearly every cell
        numbers |= _in_one_unit(kinds - numbers, sizes)
        alike = sum(cell in numbers for cell in cells)
        meant = alike if 10 * alike >= 9 * len(cells) else meant
    if 2 * meant > len(cells) and bad:
        flags = values.notna() & ~values.astype(str).isin(plain)
        cell, place = bad[0].strip(), describe_place(frame, flags)
        if 2 * len(bad) > len(cells):
            raise DataError(
                f"column {name!r} is text in {len(bad)} of {len(cells)} rows, such as {cell!r} "
                f"{place}, and a number to a person; write plain numbers such as 10.5, {HOW}, or "
                "declare the column a category there"
            )
        raise DataError(
            f"column {name!r} holds {cell!r} {place}, and numbers in {len(cells) - len(bad)} of "
            f"{len(cells)} rows; correct the cell or drop the row, {HOW}, or declare the column a "
            "category there"
        )
    return "category"


def _in_one_unit(kinds: Iterable[str], sizes: bool) -> set[str]:
    """The texts that are a number each, with the same beside it; of several such, the most."""
    found: dict[tuple[str, str], set[str]] = {}
    for cell in kinds:
        one = _ONE_NUMBER.fullmatch(strip_invisible(tidy_text(cell)))
        if one and not (sizes and one["letter"]):  # as 3M, a size or a code
            beside = one["before"].strip("+−–-"), one["rest"].strip().casefold().rstrip("s.")
            found.setdefault(beside, set()).add(cell)
    most = max(found.values(), key=len, default=set())
    return most if len(most) > 2 else set()


def _is_too_large(cell: object) -> bool:
    """Whether a cell is a whole number that no float holds."""
    return isinstance(cell, int) and abs(cell) > 2**1023


def to_floats(values: pd.Series) -> np.ndarray:
    """The cells of a column, float64; NaN for what is no number, or one too large for a float."""
    if values.dtype == object:  # its integers may be of any size
        cells = (np.nan if _is_too_large(cell) else cell for cell in values)
        values = pd.Series(list(cells), dtype=object)
    numbers = pd.to_numeric(values, errors="coerce")
    return numbers.to_numpy(np.float64, na_value=np.nan)


# Beyond this, the width of a range is not a float32.
_LARGEST = 1e30


def learn_range(frame: pd.DataFrame, name: str, missing: bool) -> tuple[float, float]:
    """The range of a column's numbers, unless one is so large that it is a mistake."""
    numbers = to_floats(frame[name])
    large = np.isfinite(numbers) & (np.abs(numbers) > _LARGEST)
    if large.any():
        raise DataError(
            f"column {name!r} holds {numbers[large][0]:g} {describe_place(frame, large)}, beyond "
            f"{_LARGEST:g}; correct the cell, or declare the column's range in a schema"
        )
    if missing:
        numbers = numbers[frame[name].notna().to_numpy()]
    if not len(numbers) or not np.all(np.isfinite(numbers)):
        return (0.0, 1.0)  # the encoder reports the cell; no range could repair it
    low, high = float(numbers.min()), float(numbers.max())
    # Beyond 2^53 the next whole number is the same float.
    return (low, high) if low < high else (low, low + max(1.0, 1e-9 * abs(low)))


def check_variety(
    what: str, different: int, rows: int, advice: str, *, numbers: bool = False
) -> None:
    """Refuse names, ids, dates and free text: each would be a feature, and stand in the model."""
    # More than 50 values of less than 20 rows each are no classes that a model could learn from,
    # nor are 1,000, such as the seconds of a call; and 50 numbers are measured, such as weights.
    if different > 1_000 or (different > 50 and (numbers or 20 * different > rows)):
        raise DataError(
            f"{what} has {different} different values in {rows} rows, and each would be written "
            f"into the model; {advice}"
        )
