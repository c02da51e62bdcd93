"""Explanations of why a rule matched at an event, or why it did not."""
