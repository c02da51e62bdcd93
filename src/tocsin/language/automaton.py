"""How does a text become what it says, by the tables that Lark makes of a grammar?

Lark turns the grammar into an LALR(1) table and wraps a reader's methods, one for each production. The loop over the
table is here and not Lark's own, for two reasons: the lexer has to see the state of the parser, and ten thousand rules
have to parse in a few seconds, which takes Lark's loop a third longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tocsin.errors import RuleError
from tocsin.language.mistakes import unexpected
from tocsin.language.tokens import END, Lexer, Token

_Reduction = tuple[Callable[[list[Any]], Any], int, str]
"""What makes a value of a production's parts, how many parts there are, and the symbol that they become."""


_Mistake = Callable[[Token, set[str], Sequence[Any]], RuleError]
"""What to say of a token that does not fit, given the terminals that would and what had been read."""


class Automaton:
    """A parser for texts of a grammar, from one of its `starts`; `reader` makes the values."""

    def __init__(
        self,
        grammar: str,
        reader: object,
        starts: Sequence[str],
        lexer: type[Lexer] = Lexer,
        mistake: _Mistake = unexpected,
    ) -> None:
        from lark import Lark

        lark = Lark(
            grammar, parser="lalr", lexer="basic", start=list(starts), transformer=reader, maybe_placeholders=False
        )
        self._starts: dict[str, int] = {}
        self._steps: dict[int, dict[str, int | _Reduction]] = {}
        """By state and terminal: the state that comes next, or what is to be reduced first."""
        self._returns: dict[int, dict[str, int]] = {}
        """By state and symbol: the state that comes next when such a symbol has been made."""
        for start in starts:
            table: Any = lark.parse_interactive(start=start).parser_state.parse_conf
            self._starts[start] = table.start_state
            for state, actions in table.states.items():
                self._steps.setdefault(state, {})
                self._returns.setdefault(state, {})
                for symbol, (_, step) in actions.items():
                    if not symbol.isupper():
                        self._returns[state][str(symbol)] = step
                    elif isinstance(step, int):
                        self._steps[state][symbol] = step
                    else:
                        self._steps[state][symbol] = _reduction(step, table.callbacks)
            # Lark leaves the last state without a way out; here it takes the end like any other token.
            self._steps[table.end_state][END] = table.end_state
        spelled = {item.name: (item.pattern.value,) for item in lark.terminals if item.pattern.type == "str"}
        self._lexer = lexer(spelled, self._steps)
        self._mistake = mistake

    def read(self, text: str, start: str) -> Any:
        """What the text says; a `RuleError` where it makes no sense."""
        steps, returns = self._steps, self._returns
        states = [self._starts[start]]
        values: list[Any] = []
        for token in self._lexer.tokens(text, states):
            terminal = token.type
            step = steps[states[-1]].get(terminal)
            while isinstance(step, tuple):
                make, size, symbol = step
                parts = []
                if size:
                    parts = values[-size:]
                    del values[-size:], states[-size:]
                values.append(make(parts))
                states.append(returns[states[-1]][symbol])
                step = steps[states[-1]].get(terminal)
            if step is None:
                raise self._mistake(token, self._fitting(states), values)
            states.append(step)
            values.append(token)
        return values[-2]

    def _fitting(self, states: list[int]) -> set[str]:
        """The terminals that can come next: the table alone also names some that a reduction would lead astray."""
        return {terminal for terminal in self._steps[states[-1]] if self._fits(terminal, states)}

    def _fits(self, terminal: str, states: list[int]) -> bool:
        states = list(states)
        step = self._steps[states[-1]].get(terminal)
        while isinstance(step, tuple):
            _, size, symbol = step
            del states[len(states) - size :]
            states.append(self._returns[states[-1]][symbol])
            step = self._steps[states[-1]].get(terminal)
        return step is not None


def _reduction(production: Any, makers: Any) -> _Reduction:
    return makers[production], len(production.expansion), str(production.origin.name)
