"""Integrations with other packages: one folder for each, which imports its package only on use.

```text
atropos/        an Atropos environment that sends records; the hub; the launcher
ray/            a learner that workers on any node of a Ray cluster find by name
skyrl/          SkyRL's trainers, fed by records
token_file.py   the token for TCP, from a file; both use it
```
"""
