"""Numbers: what each key of a `stats()`, each number of `rollway metrics` and each histogram means, in one sentence.

This is the only place that says so. The HELP texts of the metrics come from here, and the tests compare
`docs/numbers/` and the real keys with it.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Number(NamedTuple):
    """One key of `stats()`."""

    sentence: str
    only_grows: bool


def _may_fall(**sentences: str) -> dict[str, Number]:
    return {key: Number(sentence, False) for key, sentence in sentences.items()}


def _only_grow(**sentences: str) -> dict[str, Number]:
    return {key: Number(sentence, True) for key, sentence in sentences.items()}


_WAITS = _may_fall(
    producers_waiting="Attached workers that wait for room now.",
    producers_wait_ns="Nanoseconds that the attached workers have waited for room.",
    producers_copy_ns="Nanoseconds that the attached workers have copied; estimated, as not every copy is timed.",
    learners_waiting="Attached learners that wait for data now.",
    learners_wait_ns="Nanoseconds that the attached learners have waited for data.",
    learners_hold_ns="Nanoseconds that the attached learners had data in their hands, and did not wait.",
)

_RING = {
    **_may_fall(
        batch_size="Samples of a batch.",
        num_buffers="Batches that the ring has room for.",
        bytes="Bytes of the segment.",
        ready_samples="Committed samples that no learner has taken.",
        ready_batches="Full batches that no learner has taken.",
        held_batches="Batches that learners have taken and not released.",
        held_samples="Samples in the batches that learners have taken and not released.",
        claimed_slots="Slots that workers are writing.",
        free_buffers="Buffers that are empty.",
    ),
    **_only_grow(
        samples_released="Samples that learners took and released.",
        batches_released="Batches that learners took and released.",
    ),
    **_may_fall(claim_retries="How often a worker lost the race for a slot and tried again, of attached workers."),
    **_only_grow(
        blocked="How often a worker had to wait for room: when it grows, the learner is the bottleneck.",
        dropped_oldest="Samples, or records, that were dropped to make room for newer ones.",
        dropped_newest="Samples, or records, that were dropped because there was no room for them.",
        recovered_slots="Slots that were taken back from workers that died.",
        reoffered_batches="Batches that were taken back from learners that died, and offered again.",
        aborted="Slots, or reservations, that were given back without a commit.",
        wakeups="How often learners were notified of new samples, modulo 2**32.",
    ),
    **_WAITS,
}

_RECOVERED = "Versions, or rows, that were taken back from processes that died."

_RECORDS = {
    **_may_fall(
        lanes="Workers that can be attached at once.",
        lane_bytes="Bytes of one lane, and so of the largest record.",
        grown_bytes="Bytes of all lanes that take memory.",
        ready_records="Committed records that no learner has taken.",
        ready_bytes="Bytes of the committed records that no learner has taken.",
        reserved_records="Records that workers are writing.",
    ),
    **{key: _RING[key] for key in ("blocked", "dropped_oldest", "dropped_newest", "aborted")},
    **_may_fall(
        lanes_taken="Lanes that have a worker.",
        taken_records="Records that learners have taken and not released.",
        taken_bytes="Bytes of the records that learners have taken and not released.",
    ),
    **_only_grow(
        records_committed="Records that workers committed.",
        records_taken="Records that learners took; a record that was given back counts each time.",
        records_released="Records that learners released.",
        recovered_reservations="Reservations that were taken back from workers that died.",
        returned_records="Records that learners gave back, or that were taken back from learners that died.",
    ),
    **_WAITS,
}

_TCP = {
    **_may_fall(tcp_connections="Connections now, with those that are still in the handshake."),
    **_only_grow(
        tcp_arrived="Connections that came.",
        tcp_accepted="Connections that were let in.",
        tcp_refused_token="Connections that were refused: no token, or a wrong one.",
        tcp_refused_schema="Connections that were refused: another schema, or samples where records are taken.",
        tcp_refused_protocol="Connections that were refused: another protocol, or not a Rollway client.",
        tcp_refused_busy="Connections that were refused: too many at once, or too many wrong tokens.",
        tcp_refused_other="Connections that were refused: the learner is closed, or does not know the client.",
        tcp_refused_records="Records that do not fit the schema; their connections were ended.",
        tcp_cut_slow="Connections that were cut: a frame did not arrive in time; the client connects again.",
        tcp_cut_silent="Connections that were cut: nothing was received for too long; the client connects again.",
        tcp_cut_damaged="Connections that were cut: the bytes made no sense.",
        tcp_resumed="Connections of clients that were known, and continued.",
        tcp_taken_over="Connections that were ended because their client had connected again.",
        tcp_frames="Frames that arrived, with one or many samples or records each.",
        tcp_samples="Samples, or records, that arrived and were committed.",
        tcp_bytes="Bytes of the frames that arrived.",
        tcp_duplicates="Samples, or records, that came again after a reconnect, and were skipped.",
        tcp_dropped="Samples, or records, that arrived and were dropped: there was no room, as `on_full` says.",
        tcp_refused_full='Samples, or records, that were refused: there was no room, with `on_full="error"`.',
        tcp_waited="Frames that had to wait for room: when it grows, the learner is the bottleneck.",
        tcp_spilled="Frames of which one part was committed and the rest had to wait for room.",
        tcp_staged="Frames that arrived slowly, and were collected outside the ring or lane.",
        tcp_evicted="Frames that arrived too slowly for `staging_bytes`; the client sends them again.",
    ),
    **_may_fall(tcp_weight_clients="Connections of `TcpWeights` now."),
    **_only_grow(
        tcp_versions="Versions of the weights that were sent whole.",
        tcp_versions_void="Versions of the weights that were overwritten while they were sent.",
        tcp_weight_bytes="Bytes of weights that were sent.",
        tcp_accept_errors="Connections that the operating system could not accept.",
    ),
    **_may_fall(tcp_sessions="Clients that the learner remembers, connected or not."),
}

_TCP_CLIENT = {
    **_only_grow(
        sent="Samples, or records, that `send` took; of a forwarder, that it and earlier ones took from its node.",
        acknowledged="Of those, how many a learner has committed, dropped or refused, as its `on_full` says.",
        connects="Connections that succeeded.",
        resumed="Connections after the first one.",
        failed_connects="Attempts to connect that failed.",
        frames="Frames that were sent, with one or many samples or records each.",
        frames_again="Frames that were sent again after a reconnect.",
        bytes="Bytes of the frames that were sent.",
        acks="Acknowledgements that came.",
        refused='Samples, or records, that the learner refused: there was no room, with `on_full="error"`.',
        dropped='Samples, or records, that were given up when the learner was restarted, with `on_restart="drop"`.',
        resent='Samples, or records, that were sent again to a restarted learner, with `on_restart="resend"`.',
    ),
}

_FORWARDER = {
    **{
        key: _RING[key]
        for key in (
            "batch_size",
            "num_buffers",
            "ready_samples",
            "held_batches",
            "held_samples",
            "claimed_slots",
            "free_buffers",
            "blocked",
            "dropped_oldest",
            "dropped_newest",
            "recovered_slots",
            "reoffered_batches",
        )
    },
    **_only_grow(sent="Samples that were taken from the ring, also by earlier forwarders of it."),
    **{key: number for key, number in _TCP_CLIENT.items() if key != "sent"},
}

_SEGMENT = {
    **_may_fall(
        segment_readable="Whether the segment can be looked at: 0 if it is damaged, or another version made it.",
        segment_closed="Whether the segment was shut down: 1 or 0.",
        used_bytes="Bytes of memory that the segment takes now.",
        fill_ratio="Share that is taken: of a ring's slots, of the bytes of lanes with a worker, of a table's rows.",
        last_commit_age_seconds="Seconds since the last commit of any participant.",
        participants="Participants, by role and state: alive, stopped (by a signal or a debugger), dead.",
    ),
    **_only_grow(
        joined="Participants that attached so far: more than there are, if some left or were started again.",
        samples_committed="Samples that workers committed.",
    ),
    **_may_fall(
        published_version="The version that the learner of records announced last.",
        published_age_seconds="Seconds since the latest version of the weights was published.",
        max_buffers="Copies of the weights that may exist at once.",
        weight_bytes="Bytes of one version of the weights.",
        workers="Processes that a vector environment has workers for.",
        envs="Environments of a vector environment.",
        data_bytes="Bytes for the observations and actions of a vector environment.",
        unanswered="Requests to environments that have no answer yet.",
        look_seconds="Seconds that it took to look at all segments.",
    ),
}

_PARTICIPANT = {
    **_may_fall(
        participant_alive="Whether the participant lives: 0 if it died without closing.",
        participant_stopped="Whether a signal or a debugger has stopped the participant: 1 or 0.",
        participant_joined_timestamp_seconds="When the participant attached, in seconds of Unix time.",
    ),
    **_only_grow(
        participant_seconds="Seconds by activity: wait_data, wait_room, hold, or work, which is the rest.",
        participant_copy_seconds="Seconds of work that were copying into shared memory; an estimate.",
        participant_committed="Samples, records, rows, versions or answers that the participant committed.",
    ),
    **_may_fall(
        participant_activity_seconds="Seconds that the participant has been at its present activity.",
        participant_last_commit_age_seconds="Seconds since the last commit of the participant.",
        participant_writing="Slots, records or rows that it has reserved; requests that it has not answered.",
        participant_holding="Batches or records that it has taken and not released; weights that it is reading.",
        participant_oldest_held_seconds="Seconds that the participant has held the oldest of its batches.",
        participant_unread="Records of the participant that no learner has taken.",
        participant_version="The version that a reader has, or that the last commit of a worker was made with.",
        participant_versions_behind="Versions that were published after the one of the participant.",
        participant_remote_connected="Workers on other hosts that are connected.",
    ),
    **_only_grow(participant_remote_lost="Connections of workers on other hosts that ended without a goodbye."),
}

GROUPS: dict[str, dict[str, Number]] = {
    "A ring": _RING,
    "Records": _RECORDS,
    "The workers of a server": _may_fall(
        producers_alive="Workers that are attached or connected.",
        producers_died="Workers that died without closing, until another worker takes their seat.",
    ),
    "A server with a TcpTransport": _TCP,
    "A client in shared memory": _only_grow(sent="Samples, or records, that this client committed."),
    "The learners of records": _may_fall(
        learners_alive="Learners that are attached.",
        learners_died="Learners that died without closing, until another learner takes their seat.",
    ),
    "A client over TCP": _TCP_CLIENT,
    "A forwarder": _FORWARDER,
    "A client of records over TCP": _may_fall(lane_bytes="Bytes of the largest record that the learner takes."),
    "Weights": {
        **_only_grow(version="The latest version that was published."),
        **_may_fall(buffers="Copies of the weights that exist."),
        **_only_grow(
            retries="How often a reader had to copy again, because the version was overwritten meanwhile.",
            overtaken="How often the writer overwrote a version that a reader was copying.",
            recovered=_RECOVERED,
        ),
    },
    "Weights over TCP": _only_grow(
        connects="Connections that succeeded.",
        failed_connects="Attempts to connect that failed.",
        versions="Versions that came whole.",
        voids="Versions that the learner overwrote while they were sent.",
        bytes="Bytes of weights that came.",
        lineages="How often the versions began anew, with a new learner.",
    ),
    "A replay buffer": {
        **_may_fall(
            capacity="Rows that the buffer has room for.",
            row_bytes="Bytes of one row.",
            bytes="Bytes of the segment.",
            rows="Rows that are whole.",
            writing="Rows that are being written.",
        ),
        **_only_grow(
            added="Rows that were added.",
            overwritten="Of those, how many replaced a whole row.",
            skipped="Rows that an adder passed over, because another process was writing them.",
            recovered=_RECOVERED,
            sampled="Rows that were sampled.",
            redrawn="Draws that were repeated, because the row was being written.",
        ),
    },
    "SkyRL's generator": {
        **_may_fall(stashed_records="Records that were read and wait for the rest of their group, or for a request."),
        **_only_grow(
            groups_missing="Groups that were not used: some of their records never came.",
            groups_stale="Groups that were not used: their weights were too old.",
            records_duplicate="Records that were not used: their repetition was there already.",
            records_late="Records that were not used: their group was complete or given up.",
        ),
    },
    "A segment from outside": _SEGMENT,
    "A participant from outside": _PARTICIPANT,
}
"""Every key of every `stats()`, by what it is about; and what `rollway metrics` has beside these."""

STATS = {
    "Server": ("A ring", "The workers of a server", "A server with a TcpTransport"),
    "RecordServer": ("Records", "The workers of a server", "A server with a TcpTransport"),
    "ShmClient": ("A ring", "A client in shared memory"),
    "ShmRecordClient": ("Records", "A client in shared memory", "The learners of records"),
    "TcpClient": ("A client over TCP",),
    "TcpRecordClient": ("A client over TCP", "A client of records over TCP"),
    "Forwarder": ("A forwarder",),
    "RecordForwarder": ("Records", "A client over TCP"),
    "RolloutRingBuffer": ("A ring",),
    "SharedWeightSync": ("Weights",),
    "TcpWeights": ("Weights over TCP",),
    "ReplayBuffer": ("A replay buffer",),
    "AtroposSHMGenerator": (
        "Records",
        "The workers of a server",
        "A server with a TcpTransport",
        "SkyRL's generator",
    ),
}
"""The groups of each class. A transport of your own adds its own keys to those of its server."""

HISTOGRAMS = {
    "memcpy": "Copying a sample into its slot; of rings only.",
    "queue_dwell": "From the commit of a batch's first sample, or of a record, until it was taken.",
    "wait": "How long the learner waited for data, when it had to.",
}
"""Every key of `histograms()`."""


OUTSIDE = ("A ring", "Records", "Weights", "A replay buffer", "A segment from outside", "A participant from outside")
"""The groups of `rollway metrics`."""


def of_servers() -> dict[str, Number]:
    """The numbers of all kinds of servers. A key that two kinds have means the same."""
    return _merged((*STATS["Server"], *STATS["RecordServer"]))


def of_segments() -> dict[str, Number]:
    """The numbers of all kinds of segments, seen from outside. A key that two kinds have means the same."""
    return _merged(OUTSIDE)


def _merged(groups: Sequence[str]) -> dict[str, Number]:
    return {key: number for group in groups for key, number in GROUPS[group].items()}
