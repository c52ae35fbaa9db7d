"""Texts of records, columns and paths on their way out: to a terminal, a page, a table, a shell.

Whoever writes a column's name or a cell may be somebody else than who reads the output. A text is
shown as its characters: none of them moves the cursor, turns the direction of reading, begins a
formula, or is obeyed by a shell.
"""

from __future__ import annotations

import codecs
import encodings.ascii
import json
import pathlib
import re
import shlex
import sys
import unicodedata

import typer

# What a stream without it says in its place; of others its code.
_SPELLED = {
    **{"ε": "epsilon", "δ": "delta", "σ": "sigma", "μ": "mu", "α": "alpha", "β": "beta"},
    **{"λ": "lambda", "η": "eta", "ν": "nu", "γ": "gamma", "ρ": "rho", "Φ": "Phi", "Δ": "Delta"},
    **{"θ": "theta", "κ": "kappa", "τ": "tau", "φ": "phi", "ω": "omega", "π": "pi", "½": "1/2"},
    **{"‖": "||", "∈": "in", "∇": "grad ", "₀": "_0", "₁": "_1", "₂": "_2", "ᵢ": "_i", "⁻": "^-"},
    **{"±": "+/-", "≤": "<=", "≥": ">=", "≠": "!=", "·": "*", "×": "x", "−": "-", "√": "sqrt"},
    **{"∝": "~", "≈": "~", "∞": "infinity", "→": "->", "–": "-", "—": "-", "…": "...", "•": "*"},
    **{"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "é": "e", "²": "^2", "³": "^3"},
}
_SPELLER, _ASCII = "dpjax.spell", "dpjax_ascii"
# Joiners, which scripts and pictures need, are the formats that stay.
_KEPT_FORMATS = "\u200c\u200d"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats, halves of pairs, separators
_NUMERAL = re.compile(r"[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?", re.ASCII)
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # in both widths


def show_plainly(text: str, kept: str = "\n\t") -> str:
    """The text, in which the code of a character that is no sign stands for it.

    The codes are those of JSON, so that what is JSON stays the same JSON.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _name_code(character)
        if character not in kept + _KEPT_FORMATS and unicodedata.category(character) in _HIDDEN
        else character
        for character in text
    )


def make_printable(text: str) -> str:
    """The text as a certificate may hold it: the codes of characters that are not printable."""
    return "".join(one if one.isprintable() else _name_code(one) for one in text)


def _name_code(character: str) -> str:
    """The code of a character as JSON writes it, in ASCII."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else json.dumps(character)[1:-1]


def quote_cell(text: str) -> str:
    """A cell of a CSV file that a spreadsheet shows, whatever mark it takes for a separator.

    A text that it would take for a formula has an apostrophe before it; a number has none.
    """
    text = show_plainly(text, kept="\n")
    if text.lstrip().startswith(_FORMULA) and not _NUMERAL.fullmatch(text):
        text = f"'{text}"
    if text == text.strip() and not set(text) & set('",;|\n'):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def quote_path(path: pathlib.Path | str) -> str:
    """A path as a shell takes it for one word, in a command that is to be copied."""
    return shlex.quote(str(path))


def say(text: str, *, err: bool = False) -> None:
    """Print a line, on standard error where it is no answer."""
    typer.echo(show_plainly(text), err=err)


def spell_what_streams_cannot_say() -> None:
    """Let both streams of the process spell characters that their encoding does not have."""
    codecs.register_error(_SPELLER, _spell)
    codecs.register(_find_ascii)
    for stream in (sys.stdout, sys.stderr):
        # A program without a console has none; of another kind it is what a caller has put there.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        # Click takes ASCII for a mistake, and writes UTF-8 past such a stream: by another name it
        # does not know it.
        is_ascii = codecs.lookup(stream.encoding or "ascii").name == "ascii"
        reconfigure(encoding=_ASCII if is_ascii else stream.encoding, errors=_SPELLER)


def _find_ascii(name: str) -> codecs.CodecInfo | None:
    """The codec of ASCII by the name under which streams have it here."""
    if name != _ASCII:
        return None
    codec = encodings.ascii
    return codecs.CodecInfo(
        codecs.ascii_encode,
        codecs.ascii_decode,
        codec.StreamReader,
        codec.StreamWriter,
        codec.IncrementalEncoder,
        codec.IncrementalDecoder,
        name=_ASCII,
    )


def _spell(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding does not have: in ASCII, which all have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_SPELLED.get(one) or _name_code(one) for one in found), error.end
