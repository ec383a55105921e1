"""One measured operating point, whoever measured it: readers end in it, calibration builds it, fits and CRDs take it.

columns  the columns of a points file: meaning, unit, range
point    the point, and a row of raw fields checked into one
table    CSV in
"""
