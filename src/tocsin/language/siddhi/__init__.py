"""SiddhiQL, the language of queries over streams with windows, joins, patterns and sequences.

`ast` has the syntax tree, `parser` the parser, `resolve` the resolution of names, and `printer` the printer.
"""
