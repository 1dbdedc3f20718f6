"""Every snippet of README.md and docs runs as a reader would run it: twice, in an empty directory.

A block of ``python``, or one with commands behind ``$``, runs as it stands. What its reader has by
then is said in a comment right above it, which no reader sees::

    <!-- given: arrow -->                 an extra, or a package or program of others
    <!-- given: above -->                 it goes on where the block before it ended
    <!-- given: spark
    spark = session()                     and lines of Python that run before it
    -->
    <!-- not run: it waits for ever -->   its types are checked all the same

Tests are run by pytest. What a page says behind "It prints:", or between two commands, is compared
with the first run; ``…`` stands for anything. Absolute paths lie below a directory of the test's.
"""
