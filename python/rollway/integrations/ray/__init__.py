"""Ray: nodes of a cluster. ray is imported on use.

```text
weight_tree.py      `FetchTree`: from which node each node fetches its weights
```
"""
