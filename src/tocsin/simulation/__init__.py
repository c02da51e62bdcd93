"""Sites under virtual time."""
