"""Reading data: files, public schemas, encoding, and real data sets by name."""

from dpjax._extras import extra

with extra("data"):
    import pandas  # noqa: F401  (every file of the package works on data frames)

from dpjax.data.encoding import Dataset, encode, from_frame, split
from dpjax.data.schema import Column, DataError, Schema, complete_schema, read_schema
from dpjax.data.sources import Table, load_table, names
from dpjax.data.table import read_table

__all__ = [
    "Column",
    "DataError",
    "Dataset",
    "Schema",
    "Table",
    "complete_schema",
    "encode",
    "from_frame",
    "load_table",
    "names",
    "read_schema",
    "read_table",
    "split",
]
