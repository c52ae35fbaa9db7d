"""Reading data: files, public schemas, encoding, and real data sets by name."""

from dpjax._extras import extra

with extra("data"):
    import pandas  # noqa: F401  (every file of the package works on data frames)

from dpjax.data.description import describe_encoding, described_schema
from dpjax.data.encoding import Dataset, encode, encode_features, from_frame, split
from dpjax.data.errors import DataError
from dpjax.data.learned import complete_schema
from dpjax.data.published import Table
from dpjax.data.schema import Column, Schema, read_schema
from dpjax.data.sources import load_table, names
from dpjax.data.table import read_table

__all__ = [
    "Column",
    "DataError",
    "Dataset",
    "Schema",
    "Table",
    "complete_schema",
    "describe_encoding",
    "described_schema",
    "encode",
    "encode_features",
    "from_frame",
    "load_table",
    "names",
    "read_schema",
    "read_table",
    "split",
]
