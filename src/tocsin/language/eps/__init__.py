"""EPS, the language of requests for notification, with event expressions and timers (Moreto and Endler).

`ast` has the syntax tree, `text` the parser and the printer, and `builder` builds requests in Python.
"""
