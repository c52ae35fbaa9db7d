"""The records of a text of cells with a mark between them, by RFC 4180, whatever the cells hold.

A record is a line, unless a cell of it is quoted: between a quote at the beginning of a cell and
the next one that is not doubled, separators and line ends are characters like others. Lines end
with LF, or CRs and LF; a CR elsewhere, NUL and all other characters are parts of cells of any
length. So the cells of one record decide where it ends, and nothing of how others are read, with
one exception that no reader can mend: a quote that is opened and never closed takes the lines that
follow into its cell.

This is not left to `csv.reader`, which refuses cells of more characters than a number that the
whole process shares, and a CR outside quotes, and does not say that a quote is not closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

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
        self._is_plain = None if set(separator) & set(' "') else _match_plain(separator)
        self.broken: int | None = None  # where the first record begins whose quotes are not closed

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        for at, line in self._lines:
            if self._comment and line.startswith(self._comment):
                continue
            text = line.rstrip(_LINE_END)
            if '"' in line:
                if self._is_plain is not None and self._is_plain(text):
                    yield at, text.replace('"', "").split(self._separator)
                else:
                    yield at, self._read_quoted(at, line)
                continue
            if " " in text:
                if self._separator == " ":  # several of which are one, as before any cell
                    text = re.sub(" +", " ", text)
                cells = [cell.lstrip(" ") for cell in text.lstrip(" ").split(self._separator)]
            else:
                cells = text.split(self._separator)
            if len(cells) > 1 or cells[0].strip(" \t"):
                yield at, cells

    def _read_quoted(self, first: int, text: str) -> list[str]:
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
                        _, text = next(self._lines, (0, ""))
                        place, spans = 0, True
                        if not text:  # the end of the file
                            self.broken = self.broken or first
                            return [*cells, "".join(parts)]
                quoted = "".join(parts)
            stop = text.find(self._separator, place)
            rest = text[place:stop] if stop >= 0 else text[place:].rstrip(_LINE_END)
            # Behind the closing quote of a cell of several lines: it was opened by mistake, or ends
            # where another one was to begin.
            if is_quoted and spans and rest.strip():
                self.broken = self.broken or first
            cells.append(quoted + rest)
            if stop < 0:
                return cells
            place = stop + 1


def _match_plain(separator: str) -> Callable[[str], object]:
    """What matches a line of which every quote is the first or last character of its cell."""
    # Such cells hold no separator, quote or line end, so that the line is split as it is: a tenth
    # of the time that cell after cell takes. A blank before a cell is left to the longer way.
    inside = rf'[^"\r\n{re.escape(separator)}]'
    cell = rf'(?:"{inside}*+"|(?! ){inside}*+)'
    return re.compile(rf"{cell}(?:{re.escape(separator)}{cell})*+").fullmatch


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
