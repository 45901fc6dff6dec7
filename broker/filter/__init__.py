"""SQL92 message filters: text -> tokens -> tree -> predicate over a message's properties."""

from aerobee.broker.filter.compiler import Predicate, compile_filter
from aerobee.broker.filter.lexer import FilterSyntaxError

__all__ = ["FilterSyntaxError", "Predicate", "compile_filter"]
