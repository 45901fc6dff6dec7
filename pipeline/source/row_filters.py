"""Spark's filters on the rows of a task, so that fewer rows travel to the JVM.

A filter that is applied here must select the same rows as Spark: `applies` is true of those; the
others stay with Spark. Text and bytes are compared byte by byte, as Spark compares them.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from aerobee.pipeline.columns import COLUMNS

_COMPARED: Final[dict[type[Filter], Callable[..., Any]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_SEARCHED: Final[dict[type[Filter], Callable[..., Any]]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}
_PLAIN: Final = ("string", "binary", "int", "bigint", "timestamp")


def applies(one: Filter) -> bool:
    """Whether `kept` gives exactly Spark's rows for the filter."""
    if isinstance(one, Not):
        return not isinstance(one.child, Not) and applies(one.child)
    column: tuple[str, ...] = getattr(one, "attribute", ())
    if len(column) != 1 or column[0] not in COLUMNS or COLUMNS[column[0]][0] not in _PLAIN:
        return False
    kind = COLUMNS[column[0]][1]
    if isinstance(one, (IsNull, IsNotNull)):
        return True
    if type(one) in _SEARCHED:
        return pa.types.is_string(kind) and isinstance(one.value, str)
    values = one.value if isinstance(one, In) else [getattr(one, "value", None)]
    if type(one) not in (*_COMPARED, In) or any(value is None for value in values):
        return False
    try:
        pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def column_of(one: Filter) -> str:
    """The column that a filter tests."""
    name: str = column_of(one.child) if isinstance(one, Not) else one.attribute[0]
    return name


def kept(batch: Any, filters: Iterable[Filter]) -> Any:
    """The batch's rows that all the filters let through; what is null is not."""
    for one in filters:
        if batch.num_rows:
            batch = batch.filter(_mask(batch.column(column_of(one)), one))
    return batch


def _mask(column: Any, one: Filter) -> Any:
    if isinstance(one, Not):
        return pc.invert(_mask(column, one.child))
    if isinstance(one, IsNull):
        return pc.is_null(column)
    if isinstance(one, IsNotNull):
        return pc.is_valid(column)
    if isinstance(one, In):
        among = pc.is_in(column, value_set=pa.array(one.value, column.type))
        return pc.if_else(pc.is_valid(column), among, None)
    if type(one) in _SEARCHED:
        return _SEARCHED[type(one)](column, pattern=one.value)
    return _COMPARED[type(one)](column, pa.scalar(one.value, column.type))
