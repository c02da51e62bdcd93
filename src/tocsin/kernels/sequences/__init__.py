"""Kernels for SiddhiQL patterns and sequences. They move partial matches through the stages of an automaton."""
