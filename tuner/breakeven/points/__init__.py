"""One measured operating point of any tool: readers and calibration build it, fits and CRDs take it.

point    the model: columns with unit, range and description
row      one row of raw fields, checked into a point
table    points files: CSV in and out, and the point as JSON
quality  every threshold: when a point shows no steady state
"""
