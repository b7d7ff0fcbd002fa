"""Stubs of proto/querator/v1: made by `make proto`, never edited."""
