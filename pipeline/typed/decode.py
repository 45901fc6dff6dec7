"""Values to columns: what fits, and what does not with the reason."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from aerobee.pipeline.typed.shape import Shape


def fields_of(shape: Shape) -> list[Any]:
    """Arrow's fields as the schema names them."""
    if shape.kind == "json":
        from aerobee.pipeline.typed.json_schema import arrow_fields
    elif shape.kind == "avro":
        from aerobee.pipeline.typed.avro_schema import arrow_fields
    else:
        from aerobee.pipeline.typed.protobuf_schema import arrow_fields
    return arrow_fields(shape)


@lru_cache(maxsize=16)
def decoder_of(shape: Shape) -> Callable[[bytes], dict[str, Any]]:
    """What reads one value of the shape; made once in a worker."""
    if shape.kind == "json":
        from aerobee.pipeline.typed.json_schema import decoder
    elif shape.kind == "avro":
        from aerobee.pipeline.typed.avro_schema import decoder
    else:
        from aerobee.pipeline.typed.protobuf_schema import decoder
    return decoder(shape)


def decode_values(values: Any, shape: Shape) -> tuple[list[Any], list[str | None]]:
    """The columns of the shape, null in rows that do not fit; and each row's reason or None."""
    decode = decoder_of(shape)
    rows: list[dict[str, Any] | None] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        try:
            if value is None:
                raise ValueError("the value is null")
            rows.append(decode(value))
            reasons.append(None)
        except (ValueError, RecursionError) as error:
            rows.append(None)
            reasons.append(str(error)[:500])
    return _columns(rows, fields_of(shape), reasons), reasons


def _columns(
    rows: list[dict[str, Any] | None], fields: list[Any], reasons: list[str | None]
) -> list[Any]:
    kind = pa.struct(fields)
    try:
        return list(pa.array(rows, kind).flatten())  # a row that is null is null in each
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        pass  # one of them has a value that its type cannot hold, such as a year 10000: find it
    for at, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            rows[at] = None
            reasons[at] = str(error)[:500]
    return list(pa.array(rows, kind).flatten())
