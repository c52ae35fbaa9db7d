"""Reading data: files, public schemas, encoding, and real data sets by name."""

from dpjax._extras import extra

with extra("data"):
    import pandas  # noqa: F401  (every file of the package works on data frames)

from dpjax.data.catalogue import Table, load_table, names
from dpjax.data.cells import DataError
from dpjax.data.encoding import (
    Dataset,
    encode,
    encode_features,
    encode_released,
    from_frame,
    split,
)
from dpjax.data.private_table import PrivateTable
from dpjax.data.read import read_table
from dpjax.data.schema import (
    Column,
    Schema,
    complete_schema,
    describe_encoding,
    described_schema,
    read_schema,
)

__all__ = [
    "Column",
    "DataError",
    "Dataset",
    "PrivateTable",
    "Schema",
    "Table",
    "complete_schema",
    "describe_encoding",
    "described_schema",
    "encode",
    "encode_features",
    "encode_released",
    "from_frame",
    "load_table",
    "names",
    "read_schema",
    "read_table",
    "split",
]
