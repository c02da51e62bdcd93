"""Process one partition of a stream, in Python around the compiled kernels.

`detector.Detector` reads events and orders them by time. `pipeline.Pipeline` stores the ordered events, runs the rules
and returns their matches.
"""
