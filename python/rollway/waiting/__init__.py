"""Waiting in asyncio: how a coroutine waits for a native handle, and how it notices that its peers are gone.

```text
notifier.py       wakes coroutines when a native handle has something for them
peer_watch.py     what a learner in an event loop checks periodically while it waits
sends.py          the asyncio versions of the sends of samples
record_sends.py   the asyncio versions of the sends of records
```

Nothing here is public. Blocking calls wait natively, with the GIL released.
"""
