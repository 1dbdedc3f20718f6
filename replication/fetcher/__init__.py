"""The follower's side: truncate, fetch, append.

``fetcher_manager`` has one ``fetcher`` for each leader; ``fetcher_state`` knows what each partition
needs next; ``fetcher_reactions`` is the table of what to do about each error code.
"""
