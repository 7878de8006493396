//! Why a client, or a mirror, has no connection: for now, or for good.

use crate::error::{Damage, Error};
use crate::net::wire::frame::GoodbyeReason;
use std::io;

/// Why there is no connection.
#[derive(Debug)]
pub enum Disconnect<E = Ended> {
    /// The next attempt may succeed.
    Broken(String),
    /// The same, but nothing is known except that the time was over. A reason from an earlier attempt says more.
    Late(String),
    /// There will be no other connection.
    Final(E),
}

impl<E> Disconnect<E> {
    pub fn map_final<F>(self, convert: impl FnOnce(E) -> F) -> Disconnect<F> {
        match self {
            Disconnect::Broken(why) => Disconnect::Broken(why),
            Disconnect::Late(why) => Disconnect::Late(why),
            Disconnect::Final(end) => Disconnect::Final(convert(end)),
        }
    }
}

impl<E> From<io::Error> for Disconnect<E> {
    fn from(error: io::Error) -> Disconnect<E> {
        Disconnect::Broken(error.to_string())
    }
}

impl From<Ended> for Disconnect {
    fn from(ended: Ended) -> Disconnect {
        Disconnect::Final(ended)
    }
}

impl From<Damage> for Disconnect {
    fn from(damage: Damage) -> Disconnect {
        Ended::Protocol(damage.to_string()).into()
    }
}

/// Why there will be no other connection.
#[derive(Debug, Clone)]
pub enum Ended {
    /// Closed by its owner.
    Closed,
    /// The learner does not want this client any more, or has been away for too long.
    Lost(String),
    /// The learner has closed its ring, its records or its weights. Another one may follow on the same address.
    RingClosed(String),
    /// The learner's server stops. It may come back.
    Stopping(String),
    /// The learner does not know this client, which has sent what is not acknowledged.
    Forgotten(String),
    /// The learner was never reached.
    Unreachable(String),
    Token(String),
    /// The learner has this other schema.
    Schema(Vec<u8>),
    /// The learner takes records and the client has samples, or the like.
    Content(String),
    Protocol(String),
    Tls(String),
}

impl Ended {
    /// What a goodbye of the learner means.
    pub fn from_goodbye(code: u16, text: &[u8]) -> Ended {
        let why = String::from_utf8_lossy(text).into_owned();
        match GoodbyeReason::from_code(code) {
            Some(GoodbyeReason::RingClosed) => Ended::RingClosed(why),
            Some(GoodbyeReason::Stopping) => Ended::Stopping(why),
            Some(GoodbyeReason::Protocol) => Ended::Protocol(why),
            _ => Ended::Lost(why),
        }
    }

    /// The same for a client that the learner had let in before: whatever the reason, the connection is lost.
    pub fn after_welcome(self, other_schema: &str) -> Ended {
        match self {
            Ended::Closed | Ended::RingClosed(_) | Ended::Stopping(_) | Ended::Forgotten(_) => self,
            Ended::Schema(_) => Ended::Lost(other_schema.to_owned()),
            Ended::Lost(why)
            | Ended::Unreachable(why)
            | Ended::Token(why)
            | Ended::Content(why)
            | Ended::Protocol(why)
            | Ended::Tls(why) => Ended::Lost(why),
        }
    }

    /// What the user of a client can do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Ended::RingClosed(_) | Ended::Stopping(_) | Ended::Forgotten(_) => {
                "Make a new client when the learner is back. One with on_restart=\"drop\" or \"resend\" goes on by itself"
            }
            _ => "Make a new client when the learner is back",
        }
    }

    /// The error for a caller. `ours`: the caller's schema; `lost` makes the error of a lost connection.
    pub fn error(self, address: String, ours: &[u8], lost: impl FnOnce(String) -> Error) -> Error {
        match self {
            Ended::Closed => Error::Closed,
            Ended::Lost(why) | Ended::RingClosed(why) | Ended::Stopping(why) | Ended::Forgotten(why) => {
                lost(why)
            }
            Ended::Unreachable(why) => Error::Unreachable { address, why },
            Ended::Token(why) => Error::Token { address, why },
            Ended::Schema(theirs) => Error::ForeignSchema { address, ours: ours.to_vec(), theirs },
            Ended::Content(why) => Error::WrongContent { address, why },
            Ended::Protocol(what) => Error::Protocol { address, what },
            Ended::Tls(what) => Error::Tls { what: format!("{address}: {what}") },
        }
    }
}
