//! The counters of servers, clients and mirrors. They are independent: a reader may see one change before another.

use crate::sys::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident -> $snapshot:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$field_doc])* pub(in crate::net) $field: AtomicU64,)* }

        #[doc = concat!("[`", stringify!($name), "`], read.")]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $snapshot { $($(#[$field_doc])* pub $field: u64,)* }

        impl $name {
            pub fn snapshot(&self) -> $snapshot {
                $snapshot { $($field: self.$field.load(Ordering::Relaxed),)* }
            }
        }

        impl $snapshot {
            /// Every number with its name.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }
        }
    };
}

counters! {
    /// Of one server transport.
    ServerCounters -> ServerStats {
        /// Connections now, including those in the handshake.
        connections,
        /// Connections that came, and those that were let in.
        arrived,
        accepted,
        /// Not let in: no token or a wrong one, another schema, another protocol, too many, for other reasons.
        refused_token,
        refused_schema,
        refused_protocol,
        refused_busy,
        refused_other,
        /// Records that do not fit the schema. The connections that brought them were ended.
        refused_records,
        /// Cut: a frame was not finished in time, nothing was heard, the bytes made no sense.
        cut_slow,
        cut_silent,
        cut_damaged,
        /// Connections of clients that were known.
        resumed,
        taken_over,
        frames,
        samples,
        bytes,
        /// Samples that came again after a reconnect, and were skipped.
        duplicates,
        /// Samples dropped by the ring's policy, and refused by it.
        dropped,
        refused_full,
        /// Frames that found the ring full, and those of them that were split.
        waited,
        spilled,
        /// Frames and records that arrived slowly and were moved out of claimed room, and those that were evicted for faster ones.
        staged,
        evicted,
        /// Clients of weights now.
        weight_clients,
        /// Versions that were sent whole, those that the learner overwrote meanwhile, and bytes of both.
        versions,
        versions_void,
        weight_bytes,
        /// `accept` failed.
        accept_errors,
    }
}

counters! {
    /// Of one client.
    ClientCounters -> ClientStats {
        connects,
        /// Connections that went on where another broke.
        resumed,
        /// Attempts that failed.
        failed_connects,
        frames,
        /// Frames that were sent once more after a reconnect.
        frames_again,
        bytes,
        acks,
        /// Samples that the ring's policy refused.
        refused,
        /// Samples of unknown fate, when a learner was restarted: given up, and sent to the new learner.
        dropped,
        resent,
    }
}

counters! {
    /// Of one mirror of weights.
    MirrorCounters -> MirrorStats {
        connects,
        /// Attempts that failed.
        failed_connects,
        /// Versions that came whole, and those that the learner overwrote on their way.
        versions,
        voids,
        /// Bytes of both.
        bytes,
        /// How often a learner came back with versions that began anew.
        lineages,
    }
}

/// Adds to a counter.
pub(in crate::net) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}
