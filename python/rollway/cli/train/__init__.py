"""`rollway train`: APPO or SAC on a Gymnasium environment, watched live.

```text
session         builds the runner, runs it, decides when to end, saves
run_directory   where its files are, and what it was asked for
screen          shows it: a live table on a terminal, lines elsewhere
curve           the learning curve, as a picture
wandb_log       its numbers in Weights & Biases
```
"""
