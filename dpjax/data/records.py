"""The records of a text of cells with a mark between them, by RFC 4180, whatever the cells hold.

A record is a line, unless a cell of it is quoted: between a quote at the beginning of a cell and
the next one that is not doubled, separators and line ends are characters like others. Lines end
with LF, or CRs and LF; a CR elsewhere, NUL and all other characters are parts of cells of any
length. So the cells of one record decide where it ends, and nothing of how others are read, with
one exception that no reader can mend: a quote that is opened and not closed takes the lines that
follow into its cell, up to the next quote that is not doubled. `Records.broken` tells it where none
follows, and where a text stands behind that one, as in `3,"c"` below. Where the next quote ends its
cell, as in `3,c"` or in a text that begins with a separator, the lines are one record of several
lines by RFC 4180, and nothing tells them from one that was meant so.

Plain records are read by `csv.reader`, which is fast, and in its strict form refuses every other: a
cell of more characters than a number that the whole process shares, a CR outside quotes, a quote
that is not closed, a text behind a closing one. These are read here.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

# What stands in a quoted cell up to its closing quote; no attempt is made twice, so that a cell of
# any length takes time by its length.
_QUOTED = re.compile(r'[^"]*+(?:""[^"]*+)*+')
_BLANKS = re.compile(" *+")
_LINE_END = "\r\n"


class Records:
    """The first line's number and the cells of every record that is neither empty nor a comment.

    A line of blanks alone is no record; one of an empty cell in quotes is. Blanks before a cell
    are no part of it.
    """

    def __init__(self, lines: Iterable[str], separator: str, comment: str | None = None):
        self._lines = enumerate(lines, start=1)
        self._separator, self._comment = separator, comment
        self._first, self._taken = 0, list[str]()  # a record's first line, and what is read of it
        self.broken: int | None = None  # where the first record begins whose quotes are not closed

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        for cells in self._read_plain():
            if cells is None:
                # `csv` refuses a record in a line of it, so that it holds all that were taken.
                later = (line for _, line in self._lines)
                cells = self._read_any(itertools.chain(self._taken, later))
            if len(cells) > 1 or (cells and cells[0].strip(" \t")) or '"' in self._taken[0]:
                yield self._first, cells
            self._taken.clear()

    def _read_plain(self) -> Iterator[list[str] | None]:
        """The cells of the record that `_taken` begins with, None where `csv` refuses it."""
        if self._separator == " ":  # several of which are one
            yield from (None for _ in self._take_lines())
            return
        how: dict[str, Any] = {"skipinitialspace": True, "strict": True}
        reader = csv.reader(self._take_lines(), delimiter=self._separator, **how)
        while True:
            try:
                yield next(reader)
            except StopIteration:
                return
            except csv.Error:  # the reader begins anew with the next line
                yield None

    def _take_lines(self) -> Iterator[str]:
        """The lines, but for comments between records, each noted in `_taken`."""
        taken, comment = self._taken, self._comment
        for at, line in self._lines:
            if not taken:
                if comment and line.startswith(comment):
                    continue
                self._first = at
            taken.append(line)
            yield line

    def _read_any(self, lines: Iterator[str]) -> list[str]:
        """The cells of the record that begins with the first line, whatever they hold."""
        line = next(lines)
        if '"' in line:
            return self._read_quoted(line, lines)
        return self._split(line.rstrip(_LINE_END))

    def _split(self, text: str) -> list[str]:
        """The cells of a line without a quote."""
        if " " not in text:
            return text.split(self._separator)
        if self._separator == " ":  # several of which are one, as before any cell
            text = re.sub(" +", " ", text)
        return [cell.lstrip(" ") for cell in text.lstrip(" ").split(self._separator)]

    def _read_quoted(self, text: str, lines: Iterator[str]) -> list[str]:
        """The cells of the record that begins with this line, in which there is a quote."""
        cells, place, spans = [], 0, False
        while True:
            place, quoted = _skip_blanks(text, place), ""
            if is_quoted := text.startswith('"', place):
                parts, closed = [], False
                place += 1
                while not closed:
                    body = _QUOTED.match(text, place)
                    assert body is not None  # it matches nothing, too
                    parts.append(body[0].replace('""', '"'))
                    place, closed = body.end() + 1, body.end() < len(text)
                    if not closed:
                        text = next(lines, "")
                        place, spans = 0, True
                        if not text:  # the end of the file
                            self.broken = self.broken or self._first
                            return [*cells, "".join(parts)]
                quoted = "".join(parts)
            stop = text.find(self._separator, place)
            rest = text[place:stop] if stop >= 0 else text[place:].rstrip(_LINE_END)
            # Behind the closing quote of a cell of several lines: it was opened by mistake, or ends
            # where another one was to begin.
            if is_quoted and spans and rest.strip():
                self.broken = self.broken or self._first
            cells.append(quoted + rest)
            if stop < 0:
                return cells
            place = stop + 1


def _skip_blanks(text: str, place: int) -> int:
    """Where a cell begins behind the blanks before it."""
    found = _BLANKS.match(text, place)
    return place if found is None else found.end()


def find_line_end(first_line: str) -> str:
    """What ends a file's lines, by its first one up to an LF: CR where that stands within it."""
    # A quoted cell counts as one character, so that what it holds does not say that a CR before it
    # is the line's last one: in a file of CR alone, an LF in the first record ends `first_line`.
    outside = re.sub(r'"(?:[^"]|"")*+"?', "_", first_line)
    return "\r" if re.search(r"\r(?![\r\n]|\Z)", outside) else "\n"
