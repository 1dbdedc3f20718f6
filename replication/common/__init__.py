"""What both sides of a request share: messages, error codes, state, and the seams for transport
and threads.
"""
