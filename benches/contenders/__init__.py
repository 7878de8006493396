"""The contenders, one module each behind `base`. Which of them meet, and in which order, is in `registry`.

To add one, write a module with a `Contender` and name it there. Peer packages are imported in the processes that
use them, so a missing one costs its rows and nothing else.
"""
