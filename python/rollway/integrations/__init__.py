"""Where Rollway meets other packages: one folder for each, which imports its peer only when it is used.

```text
atropos/        an Atropos environment that sends records; the hub; the launcher
skyrl/          SkyRL's trainers, fed by records
token_file.py   the token for TCP, from a file; both use it
```
"""
