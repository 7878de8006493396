//! The server's half of the handshake: checks the client's protocol, its token, its content and its schema.
//!
//! ```text
//! client  preamble ─────────────▶          not RLWY: the connection is closed silently (TLS gets a plain answer)
//!         ◀───────────── preamble  server  another protocol: closed; the preamble says which we speak
//!         ◀──────────────── share          unless the client has no token: refused
//!         share, proof ─────────▶          no point of the group: closed; wrong: refused
//!         ◀──────────────── proof          wrong: the client leaves before its hello
//!         hello ────────────────▶          samples where records are taken, no weights here, another schema: refused
//!         ◀────────────── welcome          (`connection` goes on from here; `weight_frames` with an inventory)
//! ```
//!
//! Before the proof a peer learns the protocol version and that a token is needed, but nothing about the token
//! ([`crate::net::wire::token`]). The whole handshake has one deadline.

use super::end::End;
use super::guesses::Guesses;
use super::stream::FrameStream;
use crate::net::wire::frame::{
    Content, HEADER_BYTES, Header, Hello, Kind, PREAMBLE_BYTES, PROTOCOL, Preamble, Refusal,
};
use crate::net::wire::tls::is_record;
use crate::net::wire::token::{Side, Token, random};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Returns the hello of a client that has proved itself. `expects`: the schema of a content, or why it is refused. The client's
/// schema is compared, and not kept; a client of weights may bring none.
pub async fn authenticate<'a>(
    wire: &mut FrameStream,
    (token, guesses, peer): (&Token, Option<&Guesses>, IpAddr),
    expects: impl Fn(Content) -> Result<&'a [u8], &'static str>,
) -> Result<Hello, End> {
    let mut client_bytes = [0; PREAMBLE_BYTES];
    wire.read_exact(&mut client_bytes).await?;
    let client = Preamble::parse(&client_bytes);
    if client.is_err() && !is_record(&client_bytes) {
        return Err(End::Stranger);
    }
    let nonce = random().map_err(|_| End::Stranger)?;
    let server_bytes = Preamble { protocol: PROTOCOL, token: true, nonce }.bytes();
    wire.queue(&server_bytes);
    let Ok(client) = client else {
        // The client cannot read this as TLS, and explains it to its user.
        let what = "the client speaks TLS, and the learner does not".to_owned();
        return Err(End::Refused(Refusal::Protocol, what, None));
    };
    if client.protocol != PROTOCOL {
        let what = format!("the client speaks protocol {}, the learner {PROTOCOL}", client.protocol);
        return Err(End::Refused(Refusal::Protocol, what, None));
    }
    if !client.token {
        let text = "the learner asks for a token, and the client has none. Give it the learner's token";
        return Err(End::Refused(Refusal::TokenNeeded, text.to_owned(), None));
    }
    prove(wire, (token, guesses, peer), &client_bytes, &server_bytes).await?;
    let (header, payload) = frame(wire, Kind::Hello).await?;
    let mut hello = Hello::parse(header.code, &payload)?;
    drop(payload);
    let schema =
        expects(hello.content).map_err(|why| End::Refused(Refusal::Content, why.to_owned(), None))?;
    let theirs = std::mem::take(&mut hello.schema); // It may be long, and is not needed any more.
    let asks = hello.content == Content::Weights && theirs.is_empty();
    if theirs != schema && !asks {
        let text = match hello.content {
            Content::Weights => "the learner has other weights",
            Content::Samples | Content::Records | Content::Forwarded | Content::ForwardedRecords => {
                "the learner expects another schema"
            }
        };
        return Err(End::Refused(Refusal::Schema, text.to_owned(), Some((hello.content, theirs))));
    }
    Ok(hello)
}

/// Checks the client's proof, and gives ours.
async fn prove(
    wire: &mut FrameStream,
    (token, guesses, peer): (&Token, Option<&Guesses>, IpAddr),
    client: &[u8; PREAMBLE_BYTES],
    server: &[u8; PREAMBLE_BYTES],
) -> Result<(), End> {
    let (exchange, share) = token.exchange(Side::Server, client, server);
    wire.queue(&Header::new(Kind::Share).with(&share));
    let (_, theirs) = frame(wire, Kind::Share).await?;
    let key = exchange.finish(&theirs)?;
    let (_, proof) = frame(wire, Kind::Proof).await?;
    match guesses.map_or(Some(Duration::ZERO), |guesses| guesses.wait(peer, Instant::now())) {
        Some(wait) if wait.is_zero() => {}
        Some(wait) => tokio::time::sleep(wait).await,
        None => {
            let text = "too many wrong tokens came from this address. Wait a few seconds".to_owned();
            return Err(End::Refused(Refusal::Busy, text, None));
        }
    }
    if !key.verify(Side::Client, &proof) {
        guesses.inspect(|guesses| guesses.note_wrong(peer, Instant::now()));
        let text = "the client's token is not the learner's: give both the same. A learner that was given no token makes another one \
                    with each start"
            .to_owned();
        return Err(End::Refused(Refusal::TokenWrong, text, None));
    }
    wire.queue(&Header::new(Kind::Proof).with(&key.prove(Side::Server)));
    Ok(())
}

/// Reads the next frame, which must be of that kind. The kind bounds its length.
async fn frame(wire: &mut FrameStream, kind: Kind) -> Result<(Header, Vec<u8>), End> {
    let mut header = [0; HEADER_BYTES];
    wire.read_exact(&mut header).await?;
    match Header::parse(&header)? {
        Some(header) if header.kind == kind => {
            let mut payload = vec![0; header.length as usize];
            wire.read_exact(&mut payload).await?;
            Ok((header, payload))
        }
        _ => Err(End::Damaged("a frame of the handshake is out of turn".to_owned())),
    }
}
