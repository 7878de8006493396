//! Why a connection of the server ends, and what its client is told.

use crate::error::Error;
use crate::net::wire::frame::{Content, Damage, GoodbyeReason, Refusal};
use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::Duration;

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// Not a Rollway client, or not one with a right to be here: closed without a goodbye.
    Stranger,
    /// The socket failed, or the client hung up.
    Broken,
    Damaged(String),
    /// A record does not fit the schema.
    Malformed(String),
    /// With the client's schema and its content, if the schema is the reason.
    Refused(Refusal, String, Option<(Content, Vec<u8>)>),
    Goodbye(GoodbyeReason, String),
}

impl From<io::Error> for End {
    /// The kernel may notice first that a host is gone ([`crate::net::wire::limits::give_up_after`]).
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

/// The result of a connection, which goes on until something ends it.
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

/// Does `work`, unless `end` comes first.
pub async fn until_end<T>(
    work: impl Future<Output = Result<T, End>>,
    end: impl Future<Output = End>,
) -> Result<T, End> {
    let (mut work, mut end) = (std::pin::pin!(work), std::pin::pin!(end));
    std::future::poll_fn(|cx| match end.as_mut().poll(cx) {
        Poll::Ready(end) => Poll::Ready(Err(end)),
        Poll::Pending => work.as_mut().poll(cx),
    })
    .await
}

/// Does `work` in time, or ends the connection as too slow.
pub async fn in_time<T, E: Into<End>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, End> {
    tokio::time::timeout(limit, work).await.map_err(|_| too_slow())?.map_err(Into::into)
}
