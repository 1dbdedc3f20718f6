from contextlib import contextmanager
@contextmanager
def mutated(name):
    yield
