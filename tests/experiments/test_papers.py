"""The papers' tables and figures run, at the smallest size, and come out as printed."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax import erm
from dpjax.cli import app
from experiments import (
    certificates,
    comparison,
    data_sets,
    report,
    tholeti2021,
)
from experiments.common import Run
from experiments.yu2020.methods import halved_dp_sgd

pytestmark = pytest.mark.usefixtures("lenient_promotion")


@pytest.fixture
def run(tmp_path, request) -> Run:
    return Run(tmp_path / "out", tmp_path / "no-data")


@pytest.fixture
def on_data(run, data_dir) -> Run:
    return Run(run.out, data_dir)


def _table(files) -> pd.DataFrame:
    return pd.read_csv(next(file for file in files if file.suffix == ".csv"))


def test_dp_sgd_halves_its_step_midway():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3)).astype(np.float32)
    problem = erm.logistic_regression(rows, rng.integers(0, 2, 60), l2=0.1)
    settings = {"steps": 4, "rate": 1.0, "noise_multiplier": 0.0}
    halved = halved_dp_sgd(problem, jax.random.key(0), step_size=2.0, **settings)
    schedule = np.array([2.0, 2.0, 1.0, 1.0])
    plain = erm.dp_sgd(problem, jax.random.key(0), step_size=schedule, **settings)
    np.testing.assert_allclose(halved.params, plain.params, rtol=1e-6)
    point = {"steps": 4, "step_size": 2.0}
    noise = {"epsilon": 1.0, "point": point, "noise": 3.0, "setting": comparison.label(point)}
    method = comparison.Method(
        "DP-SGD", halved_dp_sgd, {k: [v] for k, v in point.items()}, fixed={"rate": 0.5}
    )
    table = comparison.run_method(
        method, problem, (rows, problem.labels), [noise], repeats=3, key=jax.random.key(1)
    )
    assert len(table) == 3
    assert table["objective"].nunique() == 3


def test_noise_at_the_end_is_the_solver_with_noise():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 3)).astype(np.float32)
    problem = erm.logistic_regression(rows, rng.integers(0, 2, 400), l2=0.1)
    grid = {"epochs": [2], "step_size": [1.0]}
    point = {"epochs": 2, "step_size": 1.0}
    noise = {"epsilon": 1.0, "point": point, "noise": 0.5, "setting": comparison.label(point)}
    method = comparison.Method("RSGD", erm.rsgd, grid, fixed={"batch_size": 100})
    found = {}
    for at_the_end in (True, False):
        line = dataclasses.replace(method, at_the_end=at_the_end)
        found[at_the_end] = comparison.run_method(
            line, problem, (rows, problem.labels), [noise], repeats=400, key=jax.random.key(2)
        )["objective"]
    spread = np.hypot(*(values.sem() for values in found.values()))
    assert abs(found[True].mean() - found[False].mean()) < 4 * spread


def test_a_line_of_certificates_verifies_and_a_changed_one_does_not(run, tmp_path):
    line = comparison.certificate_line(
        acc.Repeated(acc.Gaussian(30.0), 10),
        1e-5,
        adjacency=acc.Adjacency.REPLACE_ONE,
        records=1_000,
        method="DP-GD",
        data="none",
        target=1.0,
    )
    file = run.save_certificates("figure", [line, line])
    said: list[str] = []
    # Sound, but of no line of the table.
    assert certificates.verify(run.out, said.append) == 1
    assert "line 1, DP-GD on none at ε = 1.0: no cell of its table has it" in said[0]
    cell = run.out / "cells" / "figure" / "one.json"
    cell.parent.mkdir(parents=True)
    cell.write_text(json.dumps({"rows": [{"certificate": line}]}))
    assert certificates.verify(run.out, said.append) == 0
    assert said[-1] == "2 of 2 certificates hold"
    alone = tmp_path / "one.json"
    alone.write_text(line)
    assert CliRunner().invoke(app, ["verify", str(alone)]).exit_code == 0
    changed = json.loads(line)
    changed["epsilon"] /= 2
    file.write_text(json.dumps(changed) + "\n")
    assert certificates.verify(run.out, said.append) == 1
    assert CliRunner().invoke(app, ["verify", str(file)]).exit_code == 1


def test_the_report_is_what_the_tables_say(tmp_path):
    here = pathlib.Path(report.__file__).parent
    fresh = report.report(here, tmp_path).read_text()
    assert fresh == (here / "RESULTS.md").read_text(), "run python -m experiments report again"
    for paper in ("chen2019", "yu2020", "tholeti2021", "chourasia2021", "duan2025"):
        page = f"{paper}/RESULTS.md"
        assert (tmp_path / page).read_text() == (here / page).read_text()
        assert f"({page})" in fresh
    pages = "".join((here / paper / "RESULTS.md").read_text() for paper in report._PAPERS)
    assert "| **holds** |" in pages
    assert "| **does not hold** |" in pages
    assert "no sentence" not in pages, "draw the picture again"
    assert re.search(r"\bnan\b", fresh + pages) is None


def test_an_error_that_nobody_knows_is_not_shown():
    cases = [report.Case("a", 1.0, math.nan), report.Case("b", 3.0, 0.0)]
    assert report.spread(cases) == "1 to 3, 2 cases"
    assert report.spread([*cases, report.Case("c", 5.0, 0.25)]) == "1 to 5 ± 0.2, 3 cases"


def test_the_first_page_is_short_and_says_each_claim_once():
    text = (pathlib.Path(report.__file__).parent / "RESULTS.md").read_text()
    assert len(text.split()) <= 2_500
    opening, *sections = text.split("\n## ")
    rows = [line.split(" | ") for line in opening.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 25
    assert [one.partition("\n")[0] for one in sections] == [
        "The papers, and every number",
        "How to read it",
    ]
    for _, claim, verdict, decides, _ in rows:
        assert opening.count(f"| {claim} |") == 1
        assert verdict in (report.HOLDS, report.CONDITIONS, report.FAILS, report.NONE)
        assert not any(decides in section for section in sections)


def test_the_report_says_what_was_not_run(run):
    folder, here = run.out / "tholeti2021", pathlib.Path(tholeti2021.__file__).parent
    folder.mkdir(parents=True)
    for name in ("figure2.csv", "theorem2.csv"):
        shutil.copy(here / name, folder)
    assert "Not run yet: theorem1." in report.report(run.out, run.out).read_text()
    page = (folder / "RESULTS.md").read_text()
    assert "| Figure 2 | δ of one step, d = 1, Δ = 0.515 | 0.2575 |" in page


def test_a_picture_has_named_axes_ticks_and_a_sentence(run):
    import matplotlib.pyplot as plt

    def drawn(**given):
        figure, axis = plt.subplots()
        axis.plot([1, 2], [3.0, 4.0])
        axis.set(**{"xlabel": "steps", "ylabel": "loss", **given})
        return figure

    file = run.save_figure("sound", drawn(), "It rises")
    assert report._shown(file) == "It rises"
    for wrong in ({"xlabel": ""}, {"ylabel": ""}, {"xticks": [1.5]}, {"yticks": []}):
        with pytest.raises(ValueError, match="every axis of bad must have a name and two ticks"):
            run.save_figure("bad", drawn(**wrong), "It rises")
        plt.close("all")


def test_published_files_are_checked_and_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"adult\.data\.gz"):
        data_sets.adult(tmp_path)
    (tmp_path / "bank").mkdir()
    row = " ".join(["1"] * 33)
    pd.Series([row] * 3).to_csv(tmp_path / "bank" / "BANK.dat.xz", index=False, header=False)
    with pytest.raises(ValueError, match=r"BANK\.dat\.xz has shape \(3, 32\)"):
        data_sets.bank(tmp_path)


def test_files_of_the_user_are_read(tmp_path):
    file = tmp_path / "real-sim"
    file.write_text("+1 1:0.6 20958:0.8\n-1 3:2.0\n")
    table = data_sets.libsvm(tmp_path, name="real-sim")
    assert table.features.shape == (2, 20_958)
    np.testing.assert_allclose(table.features.toarray()[:, [0, 2, -1]], [[0.6, 0, 0.8], [0, 1, 0]])
    assert table.labels.tolist() == [1, 0]
    file.write_text("+1 1:1 99999:1\n-1 3:2.0\n")
    with pytest.raises(ValueError, match="real-sim as LIBSVM publishes it"):
        data_sets.libsvm(tmp_path, name="real-sim")


def test_an_extract_of_ipums_is_read_as_the_paper_encodes_it(tmp_path):
    (tmp_path / "ipums").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no IPUMS-BR\.csv or \.dat in"):
        data_sets.ipums_rows(tmp_path, "IPUMS-BR")
    values = np.random.default_rng(0).integers(0, 3, (38_000, 52))
    lines = np.concatenate([values, values[:, :1] > 0], axis=1).astype(int)
    file = tmp_path / "ipums" / "IPUMS-BR.dat"
    pd.DataFrame(lines).to_csv(file, sep=" ", header=False, index=False)
    features, labels = data_sets.ipums_rows(tmp_path, "IPUMS-BR")
    np.testing.assert_allclose(features, values / 2, rtol=1e-6)
    np.testing.assert_array_equal(labels, values[:, 0] > 0)
    # A line of names, and text with three and with two values: 52 columns again.
    table = pd.DataFrame(lines).drop(columns=[1, 2, 3, 4, 51])
    table.insert(1, "marital status", np.array(["single", "married", "widowed"])[values[:, 1]])
    table.insert(2, "dwelling", np.array(["owned", "rented"])[(values[:, 2] > 0).astype(int)])
    file.unlink()
    file = file.with_suffix(".csv")
    table.to_csv(file, index=False)
    features, again = data_sets.ipums_rows(tmp_path, "IPUMS-BR")
    assert features.shape == (38_000, 52)
    np.testing.assert_array_equal(again, labels)
    # Categories in the order of their names, after the numbers: married, single, widowed.
    np.testing.assert_array_equal(features[:, -5:-2], np.eye(3)[:, [1, 0, 2]][values[:, 1]])
    for changed, words in (
        (table[:9], r"IPUMS-BR\.csv has \(9, "),
        (
            table.assign(dwelling=np.where(table.index == 7, "inf", table.index)),
            r"\(38000, 38050\) features",
        ),
        (table[:9].assign(label=2), "last column must be a label"),
        (table[:9].assign(dwelling=""), "no cell empty"),
    ):
        changed.to_csv(file, index=False)
        with pytest.raises(ValueError, match=words):
            data_sets.ipums_rows(tmp_path, "IPUMS-BR")
