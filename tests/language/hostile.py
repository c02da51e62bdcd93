"""Short texts that are expensive to parse or to plan: each must give statements or an error in a short time."""

from __future__ import annotations

N = 40
DEEP = 5_000
LONG = 10_000


def _nested(inner: str, before: str, after: str, depth: int = DEEP) -> str:
    return before * depth + inner + after * depth


def _pairs(sign: str, count: int = N) -> str:
    return f" {sign} ".join(f"(A{n} || B{n})" for n in range(count))


TESLA = {
    "parentheses": f"define O() from A({_nested('x = 1', '(', ')')})",
    "parentheses that do not end": f"define O() from A({'(' * DEEP}x = 1",
    "parentheses around sums": f"define O() from A(x = {_nested('1', '(1 + ', ')')})",
    "not": f"define O() from A({'not ' * DEEP}(x = 1))",
    "not and parentheses": f"define O() from A({_nested('x = 1', 'not (', ')')})",
    "minus": f"define O() from A(x = {'-' * DEEP}y)",
    "minus and parentheses": f"define O() from A(x = {_nested('y', '-(', ')')})",
    "a sum": f"define O() from A(x = {' + '.join(['y'] * LONG)})",
    "a sum in where": f"define O(v: long) from A() where v = {' + '.join(['A.y'] * LONG)}",
    "a product of differences": f"define O() from A(x = {' * '.join(['(y - 1)'] * LONG)})",
    "or": f"define O() from A({' or '.join(f'x = {n}' for n in range(LONG))})",
    "and": f"define O() from A({' and '.join(f'x != {n}' for n in range(LONG))})",
    "commas": f"define O() from A({', '.join(f'x != {n}' for n in range(LONG))})",
    "or in and": f"define O() from A({' and '.join(f'(x = {n} or y = {n})' for n in range(N))})",
    "not of or in and": f"define O() from A(not ({' and '.join(f'(x = {n} or y = {n})' for n in range(N))}))",
    "and in or, nested": f"define O() from A({_nested('x = 1', '(x = 2 or (y = 3 and ', '))')})",
    "clauses": "define O() from A()" + "".join(f" and last B{n}() within 1 s from A" for n in range(500)),
    "clauses that each find many": "define O() from A()"
    + "".join(f" and each B() as b{n} within 1 s from A" for n in range(500)),
    "rules over rules": "define R0() from A()" + "".join(f" define R{n + 1}() from R{n}()" for n in range(2_000)),
    "rules over rules, the last first": "".join(f"define R{n + 1}() from R{n}() " for n in range(2_000, -1, -1)),
    "a circle of rules": "define R0() from R999()" + "".join(f" define R{n + 1}() from R{n}()" for n in range(999)),
    "rules": "".join(f"define R{n}() from A(x = {n}) " for n in range(2_000)),
    "nth": f"define O() from A() and {'9' * LONG}-last B() within 1 s from A",
    "a number": f"define O() from A(x = {'9' * LONG})",
    "a fraction": f"define O() from A(x = 0.{'9' * LONG})",
    "an exponent": "define O() from A(x = 1e999999999)",
    "a window": f"define O() from A() and last B() within {'9' * LONG} s from A",
    "a fine window": f"define O() from A() and last B() within 0.{'0' * LONG}1 s from A",
    "a name": f"define {'O' * LONG}() from A()",
    "a string": f'define O() from A(x = "{"a" * LONG}")',
    "escapes": f'define O() from A(x = "{chr(92) * LONG}")',
    "a string that does not end": 'define O() from A(x = "' + 'a"' * LONG,
    "attributes": f"define O({', '.join(f'a{n}: long' for n in range(2_000))}) from A()",
    "blanks": " " * LONG + "define O() from A()" + "\n" * LONG,
    "comments": "-- a\n" * LONG + "define O() from A()",
    "symbols": "(" * LONG,
    "commas alone": "," * LONG,
    "a surrogate": "define O() from A(x = '\ud800')",
    "a null": "define O\0() from A()",
    "nothing": "",
}
EPS = {
    "|| in &": f"request R on {_pairs('&')}",
    "|| in ;": f"request R on {_pairs(';')}",
    "|| in & in a context": f"request R on {_pairs('&')} mode recent",
    "|| in & under a timer": f"request R on at({_pairs('&')}, 1 s)",
    "|| in & and ;": f"request R on ({_pairs('&')}) ; ({_pairs(';').replace('A', 'C').replace('B', 'D')})",
    "|| in & beside many": f"request R on {_pairs('&', 6)} & " + " & ".join(f"C{n}" for n in range(88)),
    "|| in & beside many of one type": f"request R on {_pairs('&', 6)} & TimesDf(64, C, x)",
    "|| in & beside an order": f"request R on {_pairs('&', 6)} & (" + " ; ".join(f"C{n}" for n in range(80)) + ")",
    "wide || in &": "request R on "
    + " & ".join("(" + " || ".join(f"A{n}x{m}" for m in range(50)) + ")" for n in range(8)),
    "nested || and &": "request R on " + "".join(f"(A{n} || (B{n} & " for n in range(200)) + "C" + "))" * 200,
    "||": "request R on " + " || ".join(f"A{n}" for n in range(2_000)),
    "&": "request R on " + " & ".join(f"A{n}" for n in range(2_000)),
    ";": "request R on " + " ; ".join(f"A{n}" for n in range(2_000)),
    "; in a context": "request R on " + " ; ".join(f"A{n}" for n in range(2_000)) + " mode chronicle",
    "parentheses": f"request R on {_nested('A', '(', ')')}",
    "nested ;": f"request R on {''.join(f'A{n} ; (' for n in range(2_000))}B{')' * 2_000}",
    "nested &": f"request R on {''.join(f'A{n} & (' for n in range(2_000))}B{')' * 2_000}",
    "timers of timers": f"request R on {_nested('A', 'at(', ', 1 s)', 2_000)}",
    "a few timers of timers": f"request R on {_nested('A', 'at(', ', 1 s)', 60)}",
    "timers": "request R on A & " + " & ".join(f"at(A, {n} s) as t{n}" for n in range(1, 300)),
    "TimesEq": "request R on TimesEq(999999999, A, x)",
    "TimesEq of the most": "request R on TimesEq(64, A, x)",
    "TimesDf of the most": "request R on TimesDf(64, A, x)",
    "many TimesDf": "request R on " + " & ".join(f"TimesDf(64, A as a{n}, x)" for n in range(40)),
    "many TimesDf or": "request R on " + " || ".join(f"TimesDf(64, A as a{n}, x)" for n in range(40)),
    "conditions": "request R on A as a & B as b if " + " and ".join(f"a.x != b.y + {n}" for n in range(5_000)),
    "not in conditions": f"request R on A as a & B as b if {_nested('a.x = b.x', 'not (', ')')}",
    "a period": "request R on every(1 us) & A",
    "an unfinished request": "request R on " + "A & (" * DEEP,
}
SIDDHI = {
    "a count": "from every e1=A<1:2000000000> -> e2=B select e2.x as x insert into O",
    "an exact count": "from every e1=A<2000000000> -> e2=B select e2.x as x insert into O",
    "a large count": f"from every e1=A<{'9' * LONG}> -> e2=B select e2.x as x insert into O",
    "counts": "from every "
    + " -> ".join(f"e{n}=A<1:2000000000>" for n in range(200))
    + " -> z=B select z.x as x insert into O",
    "optional steps": "from every "
    + " -> ".join(f"e{n}=A<0:5>" for n in range(200))
    + " -> z=B select z.x as x insert into O",
    "optional steps of a sequence": "from every "
    + ", ".join(f"e{n}=A?" for n in range(200))
    + ", z=B select z.x as x insert into O",
    "or": "from every "
    + " -> ".join(f"a{n}=A or b{n}=B" for n in range(200))
    + " -> z=B select z.x as x insert into O",
    "and": "from every "
    + " -> ".join(f"a{n}=A and b{n}=B" for n in range(200))
    + " -> z=B select z.x as x insert into O",
    "states": "from every " + " -> ".join(f"e{n}=A" for n in range(2_000)) + " select e0.x as x insert into O",
    "groups": f"from {_nested('every e1=A', '(', ')')} -> e2=B select e2.x as x insert into O",
    "an index": f"from every e1=A<1:5> -> e2=B select e1[{'9' * 18}].x as x insert into O",
    "a far index": "from every e1=A<1:2000000000> -> e2=B select e1[1999999999].x as x insert into O",
    "last - n": "from every e1=A<1:2000000000> -> e2=B select e1[last - 1999999999].x as x insert into O",
    "calls": f"from A select {_nested('x', 'coalesce(', ', 1)')} as x insert into O",
    "if then else": f"from A select {_nested('x', 'ifThenElse(x > 1, ', ', 1)')} as x insert into O",
    "parentheses": f"from A[{_nested('x == 1', '(', ')')}] select x insert into O",
    "not": f"from A[{'not ' * DEEP}(x == 1)] select x insert into O",
    "a sum": f"from A select {' + '.join(['x'] * LONG)} as x insert into O",
    "or in a filter": f"from A[{' or '.join(f'x == {n}' for n in range(LONG))}] select x insert into O",
    "filters": f"from A{'[x > 1]' * DEEP} select x insert into O",
    "a length": "from A#window.length(2000000000) select sum(x) as x insert into O",
    "a batch": "from A#window.lengthBatch(2000000000) select sum(x) as x insert into O",
    "a long time": f"from A#window.time({'9' * LONG} sec) select sum(x) as x insert into O",
    "durations": f"from A#window.time({'1 sec ' * LONG}) select sum(x) as x insert into O",
    "annotations": "@info(name='a') " * DEEP + "from A select x insert into O",
    "nested annotations": f"{_nested('', '@a(', ')')} from A select x insert into O",
    "items": f"from A select {', '.join(f'x as x{n}' for n in range(2_000))} insert into O",
    "groups of rows": f"from A select x group by {', '.join(f'x{n}' for n in range(2_000))} insert into O",
    "queries": "".join(f"from S{n} select x insert into S{n + 1}; " for n in range(1_000)),
    "a comment that does not end": "/*" + "*" * LONG,
    "comments": "/* a */" * LONG + "from A select x insert into O",
    "semicolons": ";" * LONG,
    "brackets": "from A" + "[" * LONG,
}
_RULE = "define Hot() from A(x > 1) "
MCEP = {
    "corners": f"{_RULE}interest I of Hot around Me() range polygon "
    + ", ".join(f"({n} m, {n * n % 97} m)" for n in range(2_000)),
    "a round polygon": f"{_RULE}interest I of Hot around Me() range polygon "
    + ", ".join(f"({n}.5 m, {n * n / 1_000} m)" for n in range(700)),
    "a length": f"{_RULE}interest I of Hot around Me() range circle {'9' * LONG} m",
    "a lifetime": f"{_RULE}interest I of Hot around Me() range circle 1 m lifetime {'9' * LONG} s",
    "types": f"{_RULE}interest I of {', '.join(['Hot'] * LONG)} around Me() range circle 1 m",
    "parentheses": f"{_RULE}interest I of Hot around Me({_nested('x = 1', '(', ')')}) range circle 1 m",
    "interests": _RULE + "".join(f"interest I{n} of Hot around Me() range circle 1 m " for n in range(1_000)),
    "rules over rules": "define R0() from A()"
    + "".join(f" define R{n + 1}() from R{n}()" for n in range(500))
    + " interest I of R500 around Me() range circle 1 m",
}
HOSTILE = {
    f"{language}: {name}": (language, text)
    for language, texts in (("tesla", TESLA), ("eps", EPS), ("siddhi", SIDDHI), ("mcep", MCEP))
    for name, text in texts.items()
}
