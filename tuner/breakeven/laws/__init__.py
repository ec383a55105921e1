"""The formulas: numbers and arrays in, numbers and arrays out; names as in docs/model.md."""
