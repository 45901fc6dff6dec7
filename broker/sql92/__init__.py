"""SQL92 message filters: text -> tokens -> tree -> predicate over a message's properties."""

from aerobee.broker.sql92.compiler import Predicate, compile_filter
from aerobee.broker.sql92.explain import failed_term
from aerobee.broker.sql92.lexer import FilterSyntaxError

__all__ = ["FilterSyntaxError", "Predicate", "compile_filter", "failed_term"]
