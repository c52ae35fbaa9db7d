"""Table III on a device, in miniature."""

from __future__ import annotations

from benchmarks import device


def test_table_three_is_followed_as_it_is_trained(lenient_promotion):
    part = device.PARTS["table3"]
    sizes = device.SMALL._replace(rows=("DP", "GeoDP β=0.1"))
    found = [dict(zip(part.columns, row, strict=True)) for row in part.rows(sizes)]
    assert [row["method"] for row in found] == ["DP"] * 3 + ["GeoDP β=0.1"] * 3
    assert [row["steps"] for row in found] == ["0 of 2", "1 of 2", "2 of 2"] * 2
    assert [row["the paper's"] for row in found] == ["60.12 %"] * 3 + ["65.47 %"] * 3
