"""The environments of `vector_env.py`, and the ways of stepping them."""
