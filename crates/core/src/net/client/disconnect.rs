//! Why a client, or a mirror, has no connection: for now, or for good.

use crate::error::{Damage, Error};
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
    /// The same for a client that the learner had let in before: whatever the reason, the connection is lost.
    pub fn after_welcome(self, other_schema: &str) -> Ended {
        match self {
            Ended::Closed => Ended::Closed,
            Ended::Schema(_) => Ended::Lost(other_schema.to_owned()),
            Ended::Lost(why)
            | Ended::Unreachable(why)
            | Ended::Token(why)
            | Ended::Content(why)
            | Ended::Protocol(why)
            | Ended::Tls(why) => Ended::Lost(why),
        }
    }

    /// The error for a caller. `ours`: the caller's schema; `lost` makes the error of a lost connection.
    pub fn error(self, address: String, ours: &[u8], lost: impl FnOnce(String) -> Error) -> Error {
        match self {
            Ended::Closed => Error::Closed,
            Ended::Lost(why) => lost(why),
            Ended::Unreachable(why) => Error::Unreachable { address, why },
            Ended::Token(why) => Error::Token { address, why },
            Ended::Schema(theirs) => Error::ForeignSchema { address, ours: ours.to_vec(), theirs },
            Ended::Content(why) => Error::WrongContent { address, why },
            Ended::Protocol(what) => Error::Protocol { address, what },
            Ended::Tls(what) => Error::Tls { what: format!("{address}: {what}") },
        }
    }
}
