"""The grammar of SQL92 filters by recursive descent: expression text -> tree.

or         := and (OR and)*
and        := equality (AND equality)*
equality   := comparison ('=' comparison | '<>' comparison | IS [NOT] NULL)*
comparison := unary (('>' | '>=' | '<' | '<=') unary
              | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
              | [NOT] BETWEEN unary AND unary
              | [NOT] IN '(' string (',' string)* ')')*
unary      := ('+' | '-' | NOT) unary | literal | name | '(' or ')'
"""

from dataclasses import dataclass
from typing import Final, NoReturn

from aerobee.broker.sql92 import lexer
from aerobee.broker.sql92.lexer import FilterSyntaxError, Token

DEPTH_MAX: Final = 48  # of brackets, signs and chained operators: a tree the stack can bear
TEXT_SIZE_MAX: Final = 65536
LONG_MAX: Final = 2**63 - 1
_LONG_DIGITS: Final = 19

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Property:
    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value


@dataclass(frozen=True, slots=True)
class Negate:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class PropertyCondition:
    """A property used as a condition: never true, because property values are texts."""

    operand: Property


@dataclass(frozen=True, slots=True)
class AllOf:
    operands: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    operands: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Compare:
    sign: str  # = > >= < <=
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Match:
    kind: str  # CONTAINS STARTSWITH ENDSWITH
    operand: "Node"
    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    texts: frozenset[str]
    negated: bool


Node = (
    Property
    | Literal
    | Negate
    | Not
    | PropertyCondition
    | AllOf
    | AnyOf
    | Compare
    | IsNull
    | Match
    | In
)
_CONDITIONS: Final = (Not, PropertyCondition, AllOf, AnyOf, Compare, IsNull, Match, In)
_ORDER_SIGNS: Final = (">", ">=", "<", "<=")
_MATCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_AFTER_NOT: Final = (*_MATCHES, "BETWEEN", "IN")
_CONSTANTS: Final[dict[str, Value]] = {"TRUE": True, "FALSE": False, "NULL": None}


def parse(text: str) -> Node:
    """The tree of an expression; FilterSyntaxError says what is wrong and where."""
    if len(text) > TEXT_SIZE_MAX:
        raise FilterSyntaxError(f"the expression is longer than {TEXT_SIZE_MAX}", text[:80], 0)
    parser = _Parser(text)
    node = parser.condition(*parser.any_of())
    if parser.token.kind != lexer.END:
        parser.fail(f"{parser.token} was not expected")
    return node


def _is_condition(node: Node) -> bool:
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, _CONDITIONS)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(lexer.tokens(text))
        self.next_at = 1
        self.token = self.tokens[0]
        self.depth = 0

    def fail(self, reason: str, token: Token | None = None) -> NoReturn:
        raise FilterSyntaxError(reason, self.text, (token or self.token).at)

    def peek(self) -> str:
        return self.tokens[min(self.next_at, len(self.tokens) - 1)].kind

    def advance(self) -> Token:
        taken = self.token
        if taken.kind != lexer.END:
            self.token = self.tokens[self.next_at]
            self.next_at += 1
        return taken

    def take(self, *kinds: str) -> Token | None:
        return self.advance() if self.token.kind in kinds else None

    def expect(self, kind: str, what: str) -> Token:
        if self.token.kind != kind:
            self.fail(f"{what} was expected, not {self.token},")
        return self.advance()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.fail(f"the expression is nested more than {DEPTH_MAX} deep")

    def condition(self, node: Node, token: Token) -> Node:
        """`node` where a condition is needed."""
        if isinstance(node, Property):
            return PropertyCondition(node)
        if not _is_condition(node):
            self.fail("a condition was expected, this is a value", token)
        return node

    # Each rule returns its node and the token at which it began, for errors found later.

    def any_of(self) -> tuple[Node, Token]:
        first, start = self.all_of()
        if self.token.kind != "OR":
            return first, start
        operands = [self.condition(first, start)]
        while self.take("OR"):
            operands.append(self.condition(*self.all_of()))
        return AnyOf(tuple(operands)), start

    def all_of(self) -> tuple[Node, Token]:
        first, start = self.equality()
        if self.token.kind != "AND":
            return first, start
        operands = [self.condition(first, start)]
        while self.take("AND"):
            operands.append(self.condition(*self.equality()))
        return AllOf(tuple(operands)), start

    def equality(self) -> tuple[Node, Token]:
        left, start = self.comparison()
        depth = self.depth
        while sign := self.take("=", "<>", "IS"):
            self.deeper()
            if sign.kind == "IS":
                negated = self.take("NOT") is not None
                self.expect("NULL", "NULL or NOT NULL")
                left = Not(IsNull(left)) if negated else IsNull(left)
                continue
            right, right_start = self.comparison()
            self.check_equal(left, start, right, right_start)
            same = Compare("=", left, right)
            left = same if sign.kind == "=" else Not(same)
        self.depth = depth
        return left, start

    def check_equal(self, left: Node, start: Token, right: Node, right_start: Token) -> None:
        for node, token in ((left, start), (right, right_start)):
            if isinstance(node, Literal) and node.value is None:
                self.fail("NULL is not equal to anything: write IS NULL or IS NOT NULL", token)
        if isinstance(left, Literal) and isinstance(right, Literal):
            booleans = isinstance(left.value, bool), isinstance(right.value, bool)
            if booleans == (True, False):
                self.fail("TRUE and FALSE cannot be compared with this", right_start)

    def comparison(self) -> tuple[Node, Token]:
        left, start = self.unary()
        depth = self.depth
        while True:
            negated = self.token.kind == "NOT" and self.peek() in _AFTER_NOT
            if negated:
                self.advance()
            operator = self.take(*_ORDER_SIGNS, *_AFTER_NOT)
            if operator is None:
                self.depth = depth
                return left, start
            self.deeper()
            if operator.kind in _ORDER_SIGNS:
                left = self.ordered(operator.kind, left, start, *self.unary())
            elif operator.kind == "BETWEEN":
                left = self.between(left, start, negated)
            elif operator.kind == "IN":
                left = self.member(left, start, negated)
            else:
                left = Match(operator.kind, left, self.string(), negated)

    def ordered(self, sign: str, left: Node, start: Token, right: Node, right_start: Token) -> Node:
        for node, token in ((left, start), (right, right_start)):
            number = isinstance(node, Literal) and is_number(node.value)
            if not number and (isinstance(node, Literal) or _is_condition(node)):
                self.fail("only numbers and properties have an order: this one has none", token)
        return Compare(sign, left, right)

    def between(self, value: Node, start: Token, negated: bool) -> Node:
        low, low_start = self.unary()
        self.expect("AND", "the AND of BETWEEN")
        high, high_start = self.unary()
        if negated:
            below = self.ordered("<", value, start, low, low_start)
            return AnyOf((below, self.ordered(">", value, start, high, high_start)))
        above = self.ordered(">=", value, start, low, low_start)
        node = AllOf((above, self.ordered("<=", value, start, high, high_start)))
        if isinstance(low, Literal) and isinstance(high, Literal):
            assert isinstance(low.value, int | float) and isinstance(high.value, int | float)
            if high.value < low.value:
                self.fail(f"BETWEEN {low.value} AND {high.value} is empty", low_start)
        return node

    def member(self, value: Node, start: Token, negated: bool) -> Node:
        if not isinstance(value, Property):
            self.fail("the left side of IN must be a property", start)
        self.expect("(", "'('")
        texts = [self.string()]
        while self.take(","):
            texts.append(self.string())
        self.expect(")", "',' or ')'")
        return In(value, frozenset(texts), negated)

    def string(self) -> str:
        image = self.expect(lexer.STRING, "a text in single quotes").text
        return image[1:-1].replace("''", "'")

    def unary(self) -> tuple[Node, Token]:
        start = self.token
        sign = self.take("+", "-", "NOT")
        if sign is None:
            return self.primary(), start
        self.deeper()
        node, token = self.unary()
        self.depth -= 1
        if sign.kind == "NOT":
            return Not(self.condition(node, token)), start
        return (node if sign.kind == "+" else Negate(node)), start

    def primary(self) -> Node:
        token = self.token
        if self.take("("):
            self.deeper()
            node, _ = self.any_of()
            self.depth -= 1
            self.expect(")", "')'")
            return node
        if token.kind == lexer.STRING:
            return Literal(self.string())
        if self.take(*_CONSTANTS):
            return Literal(_CONSTANTS[token.kind])
        if self.take(lexer.NAME):
            return Property(token.text)
        if self.take(lexer.INTEGER):
            digits = token.text.rstrip("lL")
            if len(digits) > _LONG_DIGITS or int(digits) > LONG_MAX:
                self.fail("the number does not fit 64 bits", token)
            return Literal(int(digits))
        if self.take(lexer.FLOAT):
            if float(token.text) == float("inf"):
                self.fail("the number is too large", token)
            return Literal(float(token.text))
        self.fail(f"a value was expected, not {token},")


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
