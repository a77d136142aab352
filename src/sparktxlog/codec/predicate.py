r"""Predicates of `delete_where`: a small language that every site evaluates alike.

    predicate   = conjunction { OR conjunction }
    conjunction = negation { AND negation }
    negation    = NOT negation | test
    test        = "(" predicate ")" | value [ tail ]
    tail        = compare value | IS [NOT] NULL | [NOT] IN "(" literal { "," literal } ")"
                | [NOT] BETWEEN value AND value | [NOT] LIKE prefix
    compare     = "=" | "<>" | "<" | "<=" | ">" | ">=" | "<=>"
    value       = column { "." field } | literal
    prefix      = text whose only wildcard is one "%" at its end
    literal     = number [ L | D | BD ] | 'text' | TRUE | FALSE | DATE 'date' | X'hex'
                | TIMESTAMP 'moment' | TIMESTAMP_NTZ 'moment'

A predicate travels in the log as text and is evaluated by each site's Spark, so it must neither
depend on the moment (no `now`, `rand`, user functions) nor fail at a row that only one site's
plan looks at (no arithmetic, no casts).  It is typed against the table when it is submitted:
both sides of a comparison are of one family and have an exact common type.  The result is a
normal form in which names are quoted, literals carry their type and moments their zone;
the normal form of a normal form is itself.  Workers evaluate it in UTC with ANSI rules.
See docs/decisions/0013-predicate-language.md and 0082-fewer-views-and-predicates.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import cache

from sparktxlog.codec.lexer import Token, fault, quoted_name, string_literal, tokens_of
from sparktxlog.codec.rows import nearest, parse_date, parse_timestamp, type_name
from sparktxlog.errors import InvalidRequestError
from sparktxlog.lazy_arrow import pa

MAX_LENGTH = 65_536
_MAX_DEPTH = 64
_MAX_TESTS = 1000
#: Literals of all lists of IN together.
_MAX_ITEMS = 10_000
#: Digits of a number; a double with all its zeros has 309.
_MAX_DIGITS = 400

_COMPARE = {"=": "=", "==": "=", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">",
            ">=": ">=", "<=>": "<=>"}  # fmt: skip
_RESERVED = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE"})
_INT_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
#: A pattern of LIKE that asks how a text begins.
_PREFIX = re.compile(r"(?:[^\\%_]|\\[\\%_])*%", re.DOTALL)
#: All that a predicate may have.
_ALLOWED = (
    "A predicate has columns, literals, comparisons, IN, BETWEEN, IS NULL, AND, OR, NOT and "
    "LIKE 'prefix%'. Delete by keys for what it cannot say."
)


@dataclass(frozen=True, slots=True)
class _Value:
    """A typed value in normal form."""

    sql: str
    kind: pa.DataType
    at: int
    #: Text of an untyped string literal, which takes the type of a date or moment compared with it.
    literal: str | None = None


def _family(kind: pa.DataType) -> str:
    """Return what a type may be compared with: types of one family, exactly."""
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        return "number"
    for name, check in _families():
        if check(kind):
            return name
    return ""


@cache
def _families() -> tuple[tuple[str, Callable[[pa.DataType], bool]], ...]:
    types = pa.types
    return (
        ("boolean", types.is_boolean),
        ("text", types.is_string),
        ("binary", types.is_binary),
        ("date", types.is_date32),
        ("timestamp", lambda kind: types.is_timestamp(kind) and kind.tz is not None),
        ("timestamp_ntz", lambda kind: types.is_timestamp(kind) and kind.tz is None),
    )


_MOMENTS = frozenset({"date", "timestamp", "timestamp_ntz"})


def normalise(text: str, schema: pa.Schema) -> str:
    """Check a predicate against a table and return it in the normal form that Spark evaluates.

    Args:
        text: The predicate; see the module for its language.  At most 65,536 characters.
        schema: Arrow schema of the table.

    Raises:
        InvalidRequestError: Anything outside the language, an unknown column, or types that do
            not compare exactly; the message points at the character, field `at` (definite).
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(
            "the predicate is empty", hint="Write TRUE to delete every row, or use overwrite."
        )
    if len(text) > MAX_LENGTH:
        raise InvalidRequestError(
            f"the predicate has {len(text):,} characters, {MAX_LENGTH:,} are allowed",
            hint="Delete by keys instead.",
        )
    return _Parser(text, schema).parse()


class _Parser:
    """Recursive descent; each method reads its rule and returns normalised SQL.

    Args:
        text: The predicate.
        schema: Arrow schema of the table.
    """

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._items = 0
        self._columns: Mapping[str, pa.Field] = {f.name.lower(): f for f in schema}
        self._tokens = tokens_of(text)
        self._index = 0
        self._depth = 0
        self._tests = 0

    def parse(self) -> str:
        sql = self._disjunction()
        token = self._peek()
        if token.kind != "end":
            raise self._fault(
                token, f"{token.text[:40]!r} is one word too much", "Join tests by AND and OR."
            )
        return sql

    # -- tokens ---------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._peek()
        self._index += 1
        return token

    def _accept(self, *words: str) -> bool:
        """Take the words if they come next."""
        for ahead, word in enumerate(words):
            token = self._peek(ahead)
            if token.upper != word and not (token.kind == "symbol" and token.text == word):
                return False
        self._index += len(words)
        return True

    def _expect(self, word: str) -> None:
        token = self._peek()
        if not self._accept(word):
            found = token.text[:40] or "the end"
            raise self._fault(token, f"{word} is wanted, not {found!r}")

    def _fault(
        self, token: Token | _Value, message: str, hint: str = "", **fields: str
    ) -> InvalidRequestError:
        return fault(self._text, token.at, message, hint, **fields)

    # -- tests ----------------------------------------------------------------------------------

    def _disjunction(self) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._fault(self._peek(), f"it is nested more than {_MAX_DEPTH} deep")
        found = self._joined("OR", self._conjunction)
        self._depth -= 1
        return found

    def _conjunction(self) -> str:
        return self._joined("AND", self._negation)

    def _joined(self, word: str, part: Callable[[], str]) -> str:
        parts = [part()]
        while self._accept(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else f"({f' {word} '.join(parts)})"

    def _negation(self) -> str:
        count = 0
        while self._accept("NOT"):
            count += 1
        test = self._test()
        return f"(NOT {test})" if count % 2 else test

    def _test(self) -> str:
        self._tests += 1
        if self._tests > _MAX_TESTS:
            raise self._fault(
                self._peek(), f"it has more than {_MAX_TESTS:,} tests", "Delete by keys instead."
            )
        if self._accept("("):
            inner = self._disjunction()
            self._expect(")")
            return inner
        left = self._value()
        negated = "NOT " if self._accept("NOT") else ""
        if self._accept("IN"):
            return self._in(left, negated)
        if self._accept("BETWEEN"):
            low = self._value()
            self._expect("AND")
            high = self._value()
            left1, low = self._comparable(left, low, ordered=True)
            left2, high = self._comparable(left, high, ordered=True)
            if left1.sql != left2.sql:
                raise self._fault(low, "a literal cannot be between columns of two types")
            return f"({left1.sql} {negated}BETWEEN {low.sql} AND {high.sql})"
        if self._accept("LIKE"):
            return self._like(left, negated)
        if negated:
            raise self._fault(self._peek(), "expected IN, BETWEEN or LIKE after NOT")
        if self._accept("IS"):
            negated = "NOT " if self._accept("NOT") else ""
            self._expect("NULL")
            return f"({left.sql} IS {negated}NULL)"
        return self._comparison(left)

    def _comparison(self, left: _Value) -> str:
        operator = self._peek()
        if operator.kind == "symbol" and operator.text in _COMPARE:
            self._take()
            symbol = _COMPARE[operator.text]
            left, right = self._comparable(
                left, self._value(), ordered=symbol not in ("=", "!=", "<=>")
            )
            return f"({left.sql} {symbol} {right.sql})"
        if pa.types.is_boolean(left.kind):
            return left.sql
        if operator.text in ("+", "-"):
            raise self._fault(operator, "arithmetic is not allowed")
        raise self._fault(
            operator, f"expected a comparison after a value of type {type_name(left.kind)}"
        )

    def _in(self, left: _Value, negated: str) -> str:
        self._expect("(")
        items: list[str] = []
        typed = left
        while True:
            item = self._value()
            if item.sql.startswith("`"):
                raise self._fault(item, "IN takes a list of literals")
            typed, item = self._comparable(left, item)
            items.append(item.sql)
            self._items += 1
            if self._items > _MAX_ITEMS:
                raise self._fault(
                    item, f"IN has more than {_MAX_ITEMS:,} literals", "Delete by keys instead."
                )
            if not self._accept(","):
                break
        self._expect(")")
        return f"({typed.sql} {negated}IN ({', '.join(items)}))"

    def _like(self, left: _Value, negated: str) -> str:
        token = self._take()
        if _family(left.kind) != "text":
            raise self._fault(left, f"LIKE tests text, not {type_name(left.kind)}")
        if token.kind != "string" or not _PREFIX.fullmatch(token.text):
            raise self._fault(
                token,
                "LIKE takes a text literal with one % at its end, and no other wildcard",
                _ALLOWED,
            )
        return f"({left.sql} {negated}LIKE {string_literal(token.text)})"

    # -- values ---------------------------------------------------------------------------------

    def _value(self) -> _Value:
        token = self._take()
        if token.kind == "string":
            return _Value(string_literal(token.text), pa.string(), token.at, token.text)
        if token.kind == "number":
            return self._number(token, "")
        if token.kind == "symbol" and token.text in ("-", "+"):
            number = self._take()
            if number.kind != "number":
                raise self._fault(token, "arithmetic is not allowed")
            return self._number(number, "-" if token.text == "-" else "")
        if token.upper in ("TRUE", "FALSE"):
            return _Value(token.upper, pa.bool_(), token.at)
        if token.upper == "NULL":
            raise self._fault(token, "no value equals NULL", "Write IS NULL or IS NOT NULL.")
        if token.kind == "word" and self._peek().kind == "string":
            return self._typed_literal(token, self._take())
        if token.kind == "word" and self._peek().text == "(" and self._peek().kind == "symbol":
            raise self._fault(
                token,
                f"the function {token.text[:40]!r} is not allowed",
                _ALLOWED,
                function=token.text[:40],
            )
        if token.kind == "quoted" or (token.kind == "word" and token.upper not in _RESERVED):
            return self._column(token)
        raise self._fault(token, f"a value is wanted, not {token.text[:40] or 'the end'!r}")

    def _number(self, token: Token, sign: str) -> _Value:
        text = sign + token.text
        suffix = self._suffix(token)
        if len(text) > _MAX_DIGITS:
            raise self._fault(token, f"this number has more than {_MAX_DIGITS} characters")
        if suffix == "D" or (not suffix and "e" in text.lower()):
            number = float(text)
            if number in (float("inf"), float("-inf")):
                raise self._fault(token, "this number is beyond a double")
            return _Value(f"{number!r}D", pa.float64(), token.at)
        try:
            value = Decimal(text)
        except InvalidOperation:  # of an exponent beyond 10^18
            raise self._fault(token, "this number has more than 38 digits") from None
        _, digits, exponent = value.as_tuple()
        if suffix != "BD" and exponent == 0 and "." not in text:
            if not suffix and abs(value) < 1 << 31:
                return _Value(str(value), pa.int32(), token.at)
            if abs(value) < 1 << 63:
                return _Value(f"{value}L", pa.int64(), token.at)
        if suffix == "L":
            raise self._fault(token, "this number is not a bigint")
        scale = max(0, -int(exponent))
        precision = max(len(digits) + max(0, int(exponent)), scale)
        if precision > 38:
            raise self._fault(token, "this number has more than 38 digits")
        return _Value(f"{value:f}BD", pa.decimal128(precision, scale), token.at)

    def _suffix(self, token: Token) -> str:
        after = self._peek()
        if after.kind != "word" or after.at != token.at + len(token.text):
            return ""
        if after.upper not in ("L", "D", "BD"):
            raise self._fault(after, "a number ends with a digit, L, D or BD")
        self._take()
        return after.upper

    def _typed_literal(self, word: Token, body: Token) -> _Value:
        name = word.upper
        if name == "X":
            if not _HEX.fullmatch(body.text):
                raise self._fault(body, "expected pairs of hexadecimal digits")
            return _Value(f"X'{body.text.upper()}'", pa.binary(), word.at)
        kinds = {
            "DATE": pa.date32(),
            "TIMESTAMP": pa.timestamp("us", tz="UTC"),
            "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
            "TIMESTAMP_NTZ": pa.timestamp("us"),
        }
        if name not in kinds:
            raise self._fault(
                word,
                f"{word.text[:40]!r} is no type of a literal",
                "Known: DATE, TIMESTAMP, TIMESTAMP_NTZ, X.",
            )
        return self._moment(_Value("", pa.string(), body.at, body.text), kinds[name])

    def _moment(self, literal: _Value, kind: pa.DataType) -> _Value:
        """Give a text literal the type of a date or moment; without zone it is in UTC."""
        text = literal.literal or ""
        try:
            if pa.types.is_date(kind):
                sql = f"DATE '{date.fromordinal(parse_date(text)).isoformat()}'"
            elif kind.tz is None:
                sql = f"TIMESTAMP_NTZ '{parse_timestamp(text, zone=False)}'"
            else:
                sql = f"TIMESTAMP_LTZ '{parse_timestamp(text, zone=True)}'"
        except (ValueError, OverflowError) as error:
            raise self._fault(literal, f"{text[:40]!r} is no {type_name(kind)}: {error}") from None
        return _Value(sql, kind, literal.at)

    def _column(self, token: Token) -> _Value:
        field = self._columns.get(token.text.lower())
        if field is None:
            raise self._fault(
                token,
                f"there is no column {token.text[:140]!r}",
                nearest(token.text, self._schema.names),
                column=token.text[:140],
            )
        sql, kind = quoted_name(field.name), field.type
        while self._accept("."):
            step = self._take()
            inner = (
                [f for f in kind if f.name.lower() == step.text.lower()]
                if pa.types.is_struct(kind) and step.kind in ("word", "quoted")
                else []
            )
            if len(inner) != 1:
                raise self._fault(step, f"{sql} has no field {step.text[:140]!r}")
            sql, kind = f"{sql}.{quoted_name(inner[0].name)}", inner[0].type
        return _Value(sql, kind, token.at)

    # -- types ----------------------------------------------------------------------------------

    def _comparable(
        self, left: _Value, right: _Value, *, ordered: bool = False
    ) -> tuple[_Value, _Value]:
        """Return both sides; text literals get the type of the date or moment on the other side."""
        if right.literal is not None and _family(left.kind) in _MOMENTS:
            right = self._moment(right, left.kind)
        elif left.literal is not None and _family(right.kind) in _MOMENTS:
            left = self._moment(left, right.kind)
        family = _family(left.kind)
        if not family or family != _family(right.kind) or (ordered and family == "boolean"):
            raise self._fault(
                right,
                f"{type_name(left.kind)} and {type_name(right.kind)} do not compare"
                + (" by order" if ordered and family == "boolean" else ""),
                "Both sides must be of one kind; nothing is cast.",
                expected=type_name(left.kind),
            )
        if family == "number" and not _exact(left.kind, right.kind):
            raise self._fault(
                right,
                f"{type_name(left.kind)} and {type_name(right.kind)} have no exact common type",
                "Use fewer digits.",
                expected=type_name(left.kind),
            )
        return left, right


def _exact(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether Spark compares the numbers without rounding or failing."""
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return True
    (whole1, scale1), (whole2, scale2) = _digits(left), _digits(right)
    return max(whole1, whole2) + max(scale1, scale2) <= 38


def _digits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_integer(kind):
        return _INT_DIGITS[kind.bit_width], 0
    return kind.precision - kind.scale, kind.scale
