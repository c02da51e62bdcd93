"""Guards for refactoring: recorded answers, states, message traces, public names and the shape of the source.

Everything is recorded as text or as plain bytes, and replayed through the public API as far as possible, so that a
recording outlives renamed modules and classes. What has to import internal modules does so in `internals`.

    python -m tests.guards.record NAME     records again: corpus, states, messages, shape (or all)
    python -m tests.guards.replay tesla 17 shows one recorded case and how the answer differs
    pytest tests/guards --rewrite-goldens  writes the public names again
"""
