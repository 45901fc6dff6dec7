"""Whether a query treats each row independently, so that it can run in batches."""

from typing import Any, Final

# Spark's names of the nodes; an unknown one is assumed to need all rows.
_ROW_BY_ROW: Final = (
    "Project",
    "Filter",
    "SubqueryAlias",
    "View",
    "Generate",
    "LogicalRelation",
    "Relation",
    "DataSourceV2",
    "LogicalRDD",
    "LocalRelation",
    "Range",
    "MapInArrow",
    "MapInPandas",
    "Repartition",
    "RepartitionByExpression",
    "ArrowEvalPython",
    "BatchEvalPython",
)


def is_row_by_row(rows: Any) -> bool:
    """True of filters, projections and explosions; False of sums, joins, limits, sorts."""
    plan = rows._jdf.queryExecution().analyzed()
    if plan.subqueriesAll().size():
        return False
    return all(name.startswith(_ROW_BY_ROW) for name in _nodes(plan))


def _nodes(plan: Any) -> list[str]:
    children = plan.children()
    below = [name for at in range(children.size()) for name in _nodes(children.apply(at))]
    return [str(plan.nodeName()), *below]
