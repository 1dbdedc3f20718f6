"""Options, columns, filters and errors of the data source, and the values that the driver sends
to tasks.
"""
