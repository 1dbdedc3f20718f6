"""From a seed to a verdict: draw a plan, run it, shrink what fails; and the mutants a search
must find.
"""
