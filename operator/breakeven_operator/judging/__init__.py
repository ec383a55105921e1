"""Which arm should run, and what forbids a roll to it: pure functions on a `Case`.

judge    a person's order, the library's answer, the verdict     gates    what forbids a roll, as one ordered table
doubts   the account of a profile's predictions, and doubts      scaling  how many replicas each arm needs
"""
