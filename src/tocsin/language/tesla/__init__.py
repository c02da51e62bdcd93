"""TESLA, the language of rules and subscriptions (Cugola and Margara)."""
