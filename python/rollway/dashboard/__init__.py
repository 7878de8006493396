"""The dashboard: `rollway top`, `why` and `peek` as a web page, with plots over the last hour. It only reads.

One background task looks at the segments; all browsers are shown what it keeps. `rollway dashboard` starts it.

```text
server.py    `Dashboard`: the address, the web server, the background task
history.py   `History`: what was seen in the last hour, in bounded memory
guard.py     which requests are answered: token, cookie, user, Host and Origin
pages.py     the overview, and the page of a segment
plots.py     the options of the plots
tables.py    participants, times, counters and peeks as HTML
style.css    how the pages look
```

Only `pages` and `server` need the extra `dashboard` (NiceGUI).
"""
