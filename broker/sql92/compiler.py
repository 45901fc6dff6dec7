"""A filter's tree -> a predicate over properties: nested closures, three-valued logic, no eval.

Values are text (every property is), numbers, booleans or None for an absent property. Comparing a
property with a number converts the property to the number's kind. If that fails, the whole
expression fails, and the message is not matched.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

from aerobee.broker.sql92 import parser
from aerobee.broker.sql92.parser import Node, Value

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Predicate = Callable[[Properties], bool]

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)", re.ASCII
)
_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_MATCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class _NotComparable(Exception):
    """Two values that upstream refuses to compare: the message does not match."""


def compile_filter(text: str) -> Predicate:
    """The predicate of an SQL92 expression; FilterSyntaxError when it is none."""
    evaluate = _compile(parser.parse(text))

    def matches(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except _NotComparable:
            return False

    return matches


def value_of(node: Node, properties: Properties) -> Value:
    """The value of a part of an expression; None if it has none for these properties."""
    try:
        return _compile(node)(properties)
    except _NotComparable:
        return None


def _compile(node: Node) -> Evaluate:
    return _COMPILERS[type(node)](node)


def _property(node: parser.Property) -> Evaluate:
    name = node.name
    return lambda properties: properties.get(name)


def _literal(node: parser.Literal) -> Evaluate:
    value = node.value
    return lambda properties: value


def _negate(node: parser.Negate) -> Evaluate:
    if isinstance(node.operand, parser.Literal) and parser.is_number(node.operand.value):
        assert isinstance(node.operand.value, int | float)
        return _literal(parser.Literal(-node.operand.value))
    operand = _compile(node.operand)

    def evaluate(properties: Properties) -> Value:
        value = operand(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return -value

    return evaluate


def _property_condition(node: parser.PropertyCondition) -> Evaluate:
    name = node.operand.name
    return lambda properties: False if name in properties else None


def _not(node: parser.Not) -> Evaluate:
    operand = _compile(node.operand)

    def evaluate(properties: Properties) -> Value:
        value = operand(properties)
        return None if value is None else not value

    return evaluate


def _all_of(node: parser.AllOf) -> Evaluate:
    return _decided_by(False, node.operands)


def _any_of(node: parser.AnyOf) -> Evaluate:
    return _decided_by(True, node.operands)


def _decided_by(decisive: bool, nodes: tuple[parser.Node, ...]) -> Evaluate:
    """An operand with this value decides; otherwise an unknown one makes the result unknown."""
    operands = [_compile(node) for node in nodes]

    def evaluate(properties: Properties) -> Value:
        result: Value = not decisive
        for operand in operands:
            value = operand(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _is_null(node: parser.IsNull) -> Evaluate:
    operand = _compile(node.operand)
    return lambda properties: operand(properties) is None


def _match(node: parser.Match) -> Evaluate:
    operand, compare = _compile(node.operand), _MATCHES[node.kind]
    text, negated = node.text, node.negated

    def evaluate(properties: Properties) -> Value:
        value = operand(properties)
        if not text or not isinstance(value, str):
            return False
        return compare(value, text) is not negated

    return evaluate


def _in(node: parser.In) -> Evaluate:
    name, texts, negated = node.operand.name, node.texts, node.negated

    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in texts) is not negated

    return evaluate


def _compare(node: parser.Compare) -> Evaluate:
    left, right = _compile(node.left), _compile(node.right)
    if node.sign == "=":
        return lambda properties: _equal(left(properties), right(properties))
    order = _ORDERS[node.sign]

    def evaluate(properties: Properties) -> Value:
        first, second = left(properties), right(properties)
        if first is None or second is None:
            return None
        return order(*_numbers(first, second))

    return evaluate


def _equal(left: Value, right: Value) -> Value:
    if left is None or right is None:
        return True if left is right else None if left is None else False
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return _boolean(left) is _boolean(right)
    first, second = _numbers(left, right)
    return first == second


def _boolean(value: Value) -> Value:
    return value.lower() == "true" if isinstance(value, str) else value


def _numbers(left: Value, right: Value) -> tuple[float, float]:
    """Both sides as numbers of one kind: the kind of the number beside a text, else doubles."""
    if isinstance(left, str):
        left = _read(left, as_double=not isinstance(right, int))
    if isinstance(right, str):
        right = _read(right, as_double=not isinstance(left, int))
    assert isinstance(left, int | float) and isinstance(right, int | float)
    return left, right


def _read(text: str, *, as_double: bool) -> float:
    if as_double:
        if _DOUBLE.fullmatch(text.strip()) is None:
            raise _NotComparable
        return float(text.strip().rstrip("fFdD"))
    if _INTEGER.fullmatch(text) is None:
        raise _NotComparable
    return int(text)


_COMPILERS: Final[dict[type, Callable[..., Evaluate]]] = {
    parser.Property: _property,
    parser.Literal: _literal,
    parser.Negate: _negate,
    parser.Not: _not,
    parser.PropertyCondition: _property_condition,
    parser.AllOf: _all_of,
    parser.AnyOf: _any_of,
    parser.Compare: _compare,
    parser.IsNull: _is_null,
    parser.Match: _match,
    parser.In: _in,
}
