"""Functions for your own queries: `from aerobee.spark import typed`."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from aerobee.pipeline.typed.columns import columns_of, load_shape
from aerobee.pipeline.typed.decode import decode_values
from aerobee.pipeline.typed.shape import Shape

_DECODED: Final = "__decoded"


def typed(messages: Any, schema: str | Mapping[str, Any], *, column: str = "value") -> Any:
    """The DataFrame with the columns of its values, and `reason`: null where the value fits.

    Args:
        messages: a DataFrame, batch or stream, with a binary column.
        schema: a file as for `aerobee pipeline table --schema`, or a JSON schema as a dict.
        column: the column with the values.

    Rows whose value does not fit stay, with nulls and the reason; `.where("reason is null")` leaves
    them out.
    """
    from pyspark.sql.functions import arrow_udf, col
    from pyspark.sql.pandas.types import from_arrow_schema

    if isinstance(schema, str):
        shape = load_shape(schema)
    else:
        shape = Shape("json", json.dumps(schema).encode())
    fields = [*columns_of(shape), pa.field("reason", pa.string())]

    def decode(values: pa.Array) -> pa.Array:
        arrays, reasons = decode_values(values, shape)
        columns = [array.cast(one.type) for one, array in zip(fields, arrays, strict=False)]
        return pa.StructArray.from_arrays([*columns, pa.array(reasons, pa.string())], fields=fields)

    decoded = arrow_udf(decode, from_arrow_schema(pa.schema(fields)))
    return messages.withColumn(_DECODED, decoded(col(column))).select(
        *messages.columns, f"{_DECODED}.*"
    )
