"""Measurements of others: a table that ships with the library, and the row in it that is most like an arm. Nothing here decides a roll."""
