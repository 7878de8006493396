//! The shared secret: proved by both sides, sent by neither.
//!
//! Each side answers the other's nonce with an HMAC-SHA256 over *both preambles*, so the proof also covers the
//! versions and flags that were agreed on. It says who opened the connection, not who writes on it later: on a
//! network that others can write to, use TLS besides.

use super::frame::{NONCE_BYTES, PREAMBLE_BYTES, PROOF_BYTES};
use crate::error::{Error, Result};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;

/// Who proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Side::Client => b"rollway client",
            Side::Server => b"rollway server",
        }
    }
}

/// A secret that both sides were given by other means.
#[derive(Clone)]
pub struct Token(hmac::Key);

impl Token {
    pub fn new(secret: &[u8]) -> Result<Token> {
        if secret.is_empty() {
            let range = "at least one byte; 16 random ones or more are advised".to_owned();
            return Err(Error::OutOfRange { what: "token length", value: 0, range });
        }
        Ok(Token(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// The proof of `side` in the conversation that began with these two preambles.
    pub fn prove(
        &self,
        side: Side,
        client: &[u8; PREAMBLE_BYTES],
        server: &[u8; PREAMBLE_BYTES],
    ) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.0, &[side.label(), client, server].concat());
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether a proof is right; takes as long for a wrong one.
    pub fn verify(
        &self,
        side: Side,
        client: &[u8; PREAMBLE_BYTES],
        server: &[u8; PREAMBLE_BYTES],
        proof: &[u8],
    ) -> bool {
        hmac::verify(&self.0, &[side.label(), client, server].concat(), proof).is_ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Random bytes from the operating system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::io("cannot get random bytes", std::io::Error::other("the system gave none")))?;
    Ok(bytes)
}

/// A number that is used once.
pub fn nonce() -> Result<[u8; NONCE_BYTES]> {
    random()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_side_and_conversation_only() {
        let token = Token::new(b"secret").unwrap();
        let (client, server) = ([1; PREAMBLE_BYTES], [2; PREAMBLE_BYTES]);
        let proof = token.prove(Side::Client, &client, &server);
        assert!(token.verify(Side::Client, &client, &server, &proof));
        assert!(!token.verify(Side::Server, &client, &server, &proof));
        assert!(!token.verify(Side::Client, &server, &client, &proof));
        assert!(!Token::new(b"Secret").unwrap().verify(Side::Client, &client, &server, &proof));
        assert!(!token.verify(Side::Client, &client, &server, &proof[..31]));
    }
}
