"""Where Rollway meets other packages: one module for each, which imports its peer only when it is used."""
