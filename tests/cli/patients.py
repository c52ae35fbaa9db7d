"""`python patients.py`: writes the made-up files that the commands of README and Start are run on.

Patients with one to three stays each, a date of birth, missing cells, a code of 40 values of which
some are rare, and an answer; the same with a decimal comma; and new rows without the answer.
"""

from __future__ import annotations

import pathlib
import random

_COLUMNS = ("patient_id", "birth_date", "age", "bmi", "smoker", "code")
_CODES = [f"{letter}{number:02}" for letter in "EIJK" for number in range(10)]
_FREQUENT = [2.0 ** (-position / 6) for position in range(len(_CODES))]


def _stays(draw: random.Random, patient: int) -> list[list[str]]:
    age, smoker = draw.randint(18, 94), draw.choice(["no", "yes"])
    born = f"{2025 - age}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
    found = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        bmi = "" if draw.random() < 0.08 else f"{draw.gauss(26, 4):.1f}"
        shown = "" if draw.random() < 0.03 else str(age)
        code = draw.choices(_CODES, _FREQUENT)[0]
        again = draw.random() < (0.85 if age > 58 else 0.1)
        row = [f"P{patient:05}", born, shown, bmi, smoker, code]
        found.append([*row, "yes" if again else "no"])
    return found


def write(folder: pathlib.Path, patients: int = 1_500) -> None:
    """patients.csv, patients-comma.csv and new.csv, in a folder."""
    draw = random.Random(0)
    rows = [row for patient in range(patients) for row in _stays(draw, patient)]
    tables = {
        "patients.csv": (",", [[*_COLUMNS, "readmitted"], *rows]),
        "patients-comma.csv": (
            ";",
            [[*_COLUMNS, "readmitted"], *([*r[:3], r[3].replace(".", ","), *r[4:]] for r in rows)],
        ),
        "new.csv": (",", [_COLUMNS, *(row[:-1] for row in rows[:5])]),
    }
    for name, (separator, lines) in tables.items():
        text = "\n".join(separator.join(line) for line in lines)
        (folder / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(pathlib.Path.cwd())
