"""`rollway train`: APPO or SAC on a Gymnasium environment, watched live.

```text
session   builds the runner, drives it, decides when it is over, saves
screen    shows it: a live table on a terminal, lines elsewhere
curve     the learning curve, as a picture
```
"""
