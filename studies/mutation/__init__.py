"""Mutation testing of the pure core: is a changed operator, number or condition noticed by a unit or property test?"""
