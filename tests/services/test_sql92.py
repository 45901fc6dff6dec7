"""The SQL92 filter: upstream's grammar and meaning, and errors that show the place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.broker.sql92 import FilterSyntaxError, compile_filter

MESSAGE = {
    "a": "5",
    "b": "7.5",
    "name": "it's",
    "flag": "true",
    "TAGS": "paid",
    "big": "3000000000",
}


@pytest.mark.parametrize(
    ("expression", "matched"),
    [
        ("a = 5", True),
        ("a = 5L", True),
        ("5 = a", True),
        ("a <> 5", False),
        ("a > 4 AND a <= 5", True),
        ("a > 5 OR b > 7.0", True),
        ("A > 4", False),  # property names are case-sensitive
        ("a between 5 and 6", True),
        ("a NOT BETWEEN 1 AND 4", True),
        ("a NOT BETWEEN 1 AND 5", False),
        ("b > 7.25", True),
        ("b = 7.5", True),
        ("b = .75E1", True),
        ("b > 7", False),  # not an integer: cannot be compared with one
        ("NOT (b > 7)", False),  # and the failure is no truth value either
        ("big > 5", True),
        ("big = 3000000000", True),
        ("a > -5", True),
        ("a > - -4", True),
        ("a = +5", True),
        ("-a = -5", False),  # a property is text: it has no negative
        ("name = 'it''s'", True),
        ("name IN ('x', 'it''s')", True),
        ("name NOT IN ('x')", True),
        ("missing NOT IN ('x')", False),
        ("name CONTAINS 't'", True),
        ("name NOT CONTAINS 'z'", True),
        ("missing NOT CONTAINS 'z'", False),
        ("name CONTAINS ''", False),
        ("name startswith 'it'", True),
        ("name NOT STARTSWITH 'it'", False),
        ("name ENDSWITH '''s'", True),
        ("name NOT ENDSWITH 'x'", True),
        ("missing IS NULL", True),
        ("a IS NULL", False),
        ("a IS NOT NULL", True),
        ("missing IS NOT NULL", False),
        ("missing = 5", False),
        ("NOT (missing = 5)", False),  # unknown stays unknown
        ("missing = 5 OR a = 5", True),
        ("missing = 5 AND a = 5", False),
        ("NOT (missing = 5 AND a = 6)", True),  # unknown and false is false
        ("missing <> other", False),  # both absent: upstream calls them equal
        ("a <> missing", True),
        ("missing <> a", False),
        ("flag = TRUE", True),
        ("flag = false", False),
        ("TRUE = flag", True),
        ("flag", False),  # the text "true" is not the value TRUE
        ("NOT flag", True),
        ("TRUE", True),
        ("FALSE OR TRUE", True),
        ("NULL", False),
        ("a < b", True),  # two texts: as doubles
        ("a < name", False),
        ("(a = 5) = TRUE", True),
        ("a = 5 /* five */ -- the rest is comment\n AND TAGS = 'paid'", True),
        ("a = 5 -- to the end", True),
        ("(((a = 5)))", True),
        ("a IS NOT NULL AND a BETWEEN 1 AND 9 AND NOT (name IN ('z'))", True),
    ],
)
def test_an_expression_means_what_upstream_says(expression: str, matched: bool) -> None:
    assert compile_filter(expression)(MESSAGE) is matched


@pytest.mark.parametrize(
    ("expression", "column", "reason"),
    [
        ("", 1, "a value was expected, not the end of the expression"),
        ("a =", 4, "a value was expected"),
        ("a = 5 b = 6", 7, "'b' was not expected"),
        ("a != 5", 3, "write '<>'"),
        ("a == 5", 4, "a value was expected"),
        ("a = 'x", 5, "is not closed"),
        ('a = "x"', 5, "single quotes"),
        ("a = 5 /* x", 7, "the comment is not closed"),
        ("a > 'x'", 5, "have an order"),
        ("(a = 5) > 3", 1, "have an order"),
        ("NOT b > 7", 1, "have an order"),  # NOT binds closest, as upstream
        ("a > TRUE", 5, "have an order"),
        ("a = NULL", 5, "IS NULL"),
        ("TRUE = 5", 8, "cannot be compared"),
        ("a BETWEEN 9 AND 1", 11, "is empty"),
        ("a BETWEEN 'x' AND 'y'", 11, "have an order"),
        ("a BETWEEN 1", 12, "the AND of BETWEEN"),
        ("'a' IN ('b')", 1, "must be a property"),
        ("a IN (1)", 7, "a text in single quotes was expected"),
        ("a IN ()", 7, "a text in single quotes was expected"),
        ("a IN ('x'", 10, "',' or ')'"),
        ("a IS 5", 6, "NULL or NOT NULL"),
        ("a NOT 5", 3, "'NOT' was not expected"),
        ("5", 1, "a condition was expected"),
        ("a = 5 AND 'x'", 11, "a condition was expected"),
        ("NOT 5", 5, "a condition was expected"),
        ("a = 99999999999999999999", 5, "64 bits"),
        ("a = " + "9" * 5000, 5, "64 bits"),
        ("a = 1E999", 5, "too large"),
        ("a = 5x", 6, "must follow the number"),
        ("a = 007", 6, "must follow the number"),
        ("a = 5 AND (b = 6", 17, "')' was expected"),
        ("a ~ 5", 3, "is not valid here"),
        ("(" * 60 + "a" + ")" * 60, 50, "nested"),
        ("NOT " * 60 + "a", 197, "nested"),
    ],
)
def test_an_error_points_at_its_column(expression: str, column: int, reason: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter(expression)
    text, line, caret = str(caught.value).split("\n")
    assert reason in text
    assert (caught.value.column, len(caret)) == (column, column), str(caught.value)
    assert caret.strip() == "^" and line == expression


def test_an_error_in_a_later_line_names_the_line_and_shows_only_it() -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter("a = 5\nAND\tb = = 6\nOR c = 1")
    assert str(caught.value).split("\n")[1:] == ["AND\tb = = 6", "   \t    ^"]
    assert (caught.value.line, caught.value.column) == (2, 9)


def test_ten_thousand_alternatives_do_not_overflow_the_stack() -> None:
    matches = compile_filter(" OR ".join(f"a = {number}" for number in range(5000)))
    assert matches({"a": "4999"}) and not matches({"a": "5000"})


@given(st.text(alphabet="abANDORNOTIS()'=<>,.5-+ \n/*\"", max_size=60))
def test_any_text_either_compiles_or_is_refused_in_a_sentence(text: str) -> None:
    try:
        matches = compile_filter(text)
    except FilterSyntaxError as error:
        assert 1 <= error.column <= len(text) + 1
    else:
        assert matches({"a": "5", "b": "x"}) in (True, False)
