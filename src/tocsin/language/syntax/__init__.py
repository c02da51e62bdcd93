"""The parts that the languages share: the syntax tree, the lexer, the parser, and the printer of expressions."""
