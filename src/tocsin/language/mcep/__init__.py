"""MCEP, the language of interests: moving queries, whose range follows an object (Koldehofe et al.).

`ast` has the syntax tree, `text` the parser and the printer, and `builder` builds interests in Python.
"""
