//! Why a client has no connection.

use std::io;

/// Why there is no connection.
#[derive(Debug)]
pub enum Failure {
    /// May be better later.
    Passing(String),
    /// The same, but it only says that the time was over: a reason from before says more.
    Late(String),
    /// The client is being closed.
    Cancelled,
    Token(String),
    /// The learner's schema.
    Schema(Vec<u8>),
    /// The learner takes records, and we have samples; or the like.
    Content(String),
    Protocol(String),
    Tls(String),
    /// The learner does not want us any more.
    Final(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Passing(error.to_string())
    }
}
