"""Which part of a filter was not true for a message, in words: for people who ask why."""

from aerobee.broker.sql92 import parser
from aerobee.broker.sql92.compiler import Properties, value_of
from aerobee.broker.sql92.parser import Node


def failed_term(text: str, properties: Properties) -> str:
    """The smallest part of the expression that decided, with the values of its properties."""
    return _failed(parser.parse(text), properties)


def _failed(node: Node, properties: Properties) -> str:
    if isinstance(node, parser.AllOf):
        for operand in node.operands:
            if value_of(operand, properties) is not True:
                return _failed(operand, properties)
    if isinstance(node, parser.AnyOf):
        return " and ".join(_failed(operand, properties) for operand in node.operands)
    is_false = value_of(node, properties) is False
    names = sorted(_names(node))
    values = [
        f"{name} = {properties[name]}" if name in properties else f"{name} is absent"
        for name in names
    ]
    shown = f" ({', '.join(values)})" if values else ""
    return f"{show(node)} is {'false' if is_false else 'not true'}{shown}"


def _names(node: Node) -> set[str]:
    if isinstance(node, parser.Property):
        return {node.name}
    if isinstance(node, parser.AllOf | parser.AnyOf):
        return set().union(*(_names(operand) for operand in node.operands))
    if isinstance(node, parser.Compare):
        return _names(node.left) | _names(node.right)
    return set() if isinstance(node, parser.Literal) else _names(node.operand)


def show(node: Node) -> str:
    """The node as one would write it."""
    match node:
        case parser.Property(name):
            return name
        case parser.Literal(value):
            return _literal(value)
        case parser.Negate(operand):
            return f"-{show(operand)}"
        case parser.Not(parser.Compare("=", left, right)):
            return f"{show(left)} <> {show(right)}"
        case parser.Not(parser.IsNull(operand)):
            return f"{show(operand)} IS NOT NULL"
        case parser.Not(operand):
            return f"NOT ({show(operand)})"
        case parser.PropertyCondition(operand):
            return show(operand)
        case parser.AllOf(operands):
            return " AND ".join(f"({show(operand)})" for operand in operands)
        case parser.AnyOf(operands):
            return " OR ".join(f"({show(operand)})" for operand in operands)
        case parser.Compare(sign, left, right):
            return f"{show(left)} {sign} {show(right)}"
        case parser.IsNull(operand):
            return f"{show(operand)} IS NULL"
        case parser.Match(kind, operand, text, negated):
            return f"{show(operand)} {'NOT ' if negated else ''}{kind} {_literal(text)}"
        case parser.In(operand, texts, negated):
            listed = ", ".join(_literal(text) for text in sorted(texts))
            return f"{show(operand)} {'NOT ' if negated else ''}IN ({listed})"


def _literal(value: parser.Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    return str(value)
