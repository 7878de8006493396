//! Why a connection of the server ends, and what its client is told.

use crate::error::Error;
use crate::net::wire::frame::{Content, Damage, GoodbyeReason, Refusal};
use std::io::{self, ErrorKind};

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// Not one of ours: not a word.
    Stranger,
    /// The socket failed, or the client hung up: there is nobody to tell.
    Broken,
    Damaged(String),
    /// A record does not fit the schema.
    Malformed(String),
    /// With the client's schema, and of what it is one, where that is the reason.
    Refused(Refusal, String, Option<(Content, Vec<u8>)>),
    Goodbye(GoodbyeReason, String),
}

impl From<io::Error> for End {
    /// A host that is gone is met here as well, if the kernel noticed first ([`crate::net::wire::limits::give_up_after`]): with what it
    /// heard of the way there, or with a timeout.
    fn from(error: io::Error) -> End {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => silent(),
            _ => End::Broken,
        }
    }
}

impl From<Damage> for End {
    fn from(damage: Damage) -> End {
        End::Damaged(damage.to_string())
    }
}

/// What a connection gives back that goes on until something ends it.
pub type Never = std::convert::Infallible;

pub const HAS_CLOSED: &str = "the learner has closed, and takes nothing more";

/// The end of a connection whose ring or lane is closed, or damaged.
pub fn closed(error: Error) -> End {
    let text = match error {
        Error::Closed => HAS_CLOSED.to_owned(),
        other => other.to_string(),
    };
    End::Goodbye(GoodbyeReason::RingClosed, text)
}

pub fn too_slow() -> End {
    End::Goodbye(GoodbyeReason::TooSlow, "a frame was not finished in time".to_owned())
}

/// The end of a connection whose frame was given up for faster ones.
pub fn evicted() -> End {
    let text =
        "the learner had too little memory for frames that arrive slowly, and this one was the slowest";
    End::Goodbye(GoodbyeReason::TooSlow, text.to_owned())
}

pub fn silent() -> End {
    End::Goodbye(GoodbyeReason::Silent, "nothing was heard of the client".to_owned())
}
