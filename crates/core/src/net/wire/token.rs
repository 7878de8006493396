//! The shared secret, which both sides prove and neither sends.
//!
//! A handshake with a token is a SPAKE2 exchange (a password-authenticated key exchange, the crate `spake2`). Each side sends a
//! [share](SHARE_BYTES) that its own random number blinds; both get the same key if they have the same token. Both preambles
//! are the identities of the exchange, so the key also covers the versions and flags that were agreed on. Then each side
//! shows that it has the key: an HMAC-SHA256 under that key over its own label, both preambles and both shares.
//!
//! T1  A share alone says nothing about the token: for every token there is a random number that gives this share.
//! T2  A proof is a function of the key, and the key of random numbers that never leave their process. So a listener cannot test
//!     a guess, and a peer that takes part can test the one guess with which it made its own share.
//! T3  A share that is no point of the prime-order group, or its identity, is refused before it meets our random number.
//! T4  The labels differ, and the crate marks the shares with their side: what a side said cannot be sent back to it.
//!
//! The proof covers the handshake, not the bytes after it: on a network that others can write to, use TLS, too.

use super::frame::{Damage, PREAMBLE_BYTES, PROOF_BYTES, SHARE_BYTES};
use super::limits::check;
use crate::error::{Error, Result};
use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::traits::Identity as _;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use spake2::{Ed25519Group, Identity, Password, Spake2};
use std::fmt;

/// The side that proves.
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
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    pub fn new(secret: &[u8]) -> Result<Token> {
        let range = "at least one byte; 16 random ones or more are advised";
        check(!secret.is_empty(), "token length", secret.len(), range)?;
        Ok(Token(secret.to_vec()))
    }

    /// 32 random bytes, as 64 hexadecimal digits.
    pub fn generate() -> Result<Token> {
        let digits = random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Ok(Token(digits.into_bytes()))
    }

    /// The secret itself.
    pub fn secret(&self) -> &[u8] {
        &self.0
    }

    /// Begins the exchange of `side` in the conversation that began with these two preambles. The share is to be sent.
    pub fn exchange(
        &self,
        side: Side,
        client: &[u8; PREAMBLE_BYTES],
        server: &[u8; PREAMBLE_BYTES],
    ) -> (Exchange, [u8; SHARE_BYTES]) {
        let (password, client_id, server_id) =
            (Password::new(&self.0), Identity::new(client), Identity::new(server));
        let (state, said) = match side {
            Side::Client => Spake2::<Ed25519Group>::start_a(&password, &client_id, &server_id),
            Side::Server => Spake2::<Ed25519Group>::start_b(&password, &client_id, &server_id),
        };
        let mut share = [0; SHARE_BYTES];
        share.copy_from_slice(&said); // The side, and a compressed point.
        (Exchange { state, side, share, preambles: [&client[..], server].concat() }, share)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// One side of an exchange that waits for the other's share.
pub struct Exchange {
    state: Spake2<Ed25519Group>,
    side: Side,
    share: [u8; SHARE_BYTES],
    preambles: Vec<u8>,
}

impl Exchange {
    /// The key, which is the other side's as well if that has the same token.
    pub fn finish(self, theirs: &[u8]) -> std::result::Result<SharedKey, Damage> {
        let point = theirs.get(1..).and_then(|point| CompressedEdwardsY::from_slice(point).ok());
        let point = point.and_then(|point| point.decompress()).ok_or(Damage("a share is no point"))?;
        // T3. The crate checks the length, the side and the encoding, but not the group.
        if point == curve25519_dalek::EdwardsPoint::identity() || !point.is_torsion_free() {
            return Err(Damage("a share is not in the group"));
        }
        let key = self.state.finish(theirs).map_err(|_| Damage("a share is the sender's own side"))?;
        let (client, server) = match self.side {
            Side::Client => (&self.share[..], theirs),
            Side::Server => (theirs, &self.share[..]),
        };
        let transcript = [&self.preambles[..], client, server].concat();
        Ok(SharedKey { key: hmac::Key::new(hmac::HMAC_SHA256, &key), transcript })
    }
}

/// What both sides have after an exchange, if they have the same token.
pub struct SharedKey {
    key: hmac::Key,
    transcript: Vec<u8>,
}

impl SharedKey {
    /// The proof of `side`.
    pub fn prove(&self, side: Side) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.key, &[side.label(), &self.transcript].concat());
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether a proof is right; takes as long for a wrong one.
    pub fn verify(&self, side: Side, proof: &[u8]) -> bool {
        hmac::verify(&self.key, &[side.label(), &self.transcript].concat(), proof).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use curve25519_dalek::constants::{ED25519_BASEPOINT_COMPRESSED, EIGHT_TORSION};

    const CLIENT: [u8; PREAMBLE_BYTES] = [1; PREAMBLE_BYTES];
    const SERVER: [u8; PREAMBLE_BYTES] = [2; PREAMBLE_BYTES];

    fn token(text: &str) -> Token {
        Token::new(text.as_bytes()).unwrap()
    }

    /// The keys of both sides.
    fn keys(client: (&str, [u8; PREAMBLE_BYTES]), server: (&str, [u8; PREAMBLE_BYTES])) -> [SharedKey; 2] {
        let (one, share) = token(client.0).exchange(Side::Client, &client.1, &SERVER);
        let (other, answer) = token(server.0).exchange(Side::Server, &server.1, &SERVER);
        [one.finish(&answer).unwrap(), other.finish(&share).unwrap()]
    }

    #[test]
    fn a_proof_holds_for_its_side_conversation_and_token_only() {
        let [client, server] = keys(("secret", CLIENT), ("secret", CLIENT));
        for side in [Side::Client, Side::Server] {
            assert!(server.verify(side, &client.prove(side)));
            assert!(client.verify(side, &server.prove(side)));
            assert!(!server.verify(side, &client.prove(side)[..31]));
        }
        assert!(!server.verify(Side::Server, &client.prove(Side::Client)), "reflected");
        for (one, other) in
            [(("secret", CLIENT), ("Secret", CLIENT)), (("secret", CLIENT), ("secret", [3; PREAMBLE_BYTES]))]
        {
            let [client, server] = keys(one, other);
            assert!(!server.verify(Side::Client, &client.prove(Side::Client)));
            assert!(!client.verify(Side::Server, &server.prove(Side::Server)));
        }
    }

    #[test]
    fn the_same_token_and_preambles_give_another_share_and_another_proof_each_time() {
        let (one, share) = token("secret").exchange(Side::Client, &CLIENT, &SERVER);
        let (two, again) = token("secret").exchange(Side::Client, &CLIENT, &SERVER);
        assert_ne!(share, again);
        // Of an impostor that sends the same share to both.
        let (_, theirs) = token("a guess").exchange(Side::Server, &CLIENT, &SERVER);
        let proofs = [one, two].map(|exchange| exchange.finish(&theirs).unwrap().prove(Side::Client));
        assert_ne!(proofs[0], proofs[1]);
    }

    #[test]
    fn shares_that_are_no_points_of_the_group_or_of_the_own_side_are_refused() {
        let with = |side: u8, point: [u8; 32]| {
            let mut share = [side; SHARE_BYTES];
            share[1..].copy_from_slice(&point);
            share
        };
        let refused = |share: &[u8]| {
            let (exchange, _) = token("secret").exchange(Side::Server, &CLIENT, &SERVER);
            exchange.finish(share).err()
        };
        assert_eq!(refused(&with(b'A', ED25519_BASEPOINT_COMPRESSED.to_bytes())), None);
        for point in EIGHT_TORSION {
            assert_eq!(
                refused(&with(b'A', point.compress().to_bytes())),
                Some(Damage("a share is not in the group")),
                "the identity is the first of these"
            );
        }
        let mixed = ED25519_BASEPOINT_COMPRESSED.decompress().unwrap() + EIGHT_TORSION[1];
        assert!(refused(&with(b'A', mixed.compress().to_bytes())).is_some());
        let off_the_curve =
            (0..=255).map(|byte| with(b'A', [byte; 32])).filter(|share| refused(share).is_some());
        assert!(off_the_curve.count() > 100);
        assert!(refused(&with(b'B', ED25519_BASEPOINT_COMPRESSED.to_bytes())).is_some(), "reflected");
        assert!(refused(&[]).is_some() && refused(&[b'A'; 32]).is_some() && refused(&[b'A'; 34]).is_some());
    }

    #[test]
    fn generated_tokens_differ_and_no_text_shows_them() {
        let (one, two) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert!(one != two && one.secret().len() == 64 && one.secret().iter().all(u8::is_ascii_hexdigit));
        assert_eq!(format!("{one:?}"), "Token(…)");
    }
}
