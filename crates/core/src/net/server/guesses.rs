//! Counts wrong proofs for each address, and slows an address down that sends many.
//!
//! An exchange tests one guess ([`crate::net::wire::token`]), so the number of exchanges bounds the guesses. An address with more
//! than [`FREE`] wrong proofs in a second gets one answer in [`SPACING`], right or wrong, until [`SLOW_FOR`] after the last wrong
//! one; an answer that would have to wait for longer than [`LONGEST_WAIT`] is a refusal. Other addresses do not notice.
//!
//! Only for tokens that a person chose. A token that the server made cannot be guessed, and then no user of a machine should be
//! able to slow down the others on its loopback address.

use crate::sys::thread::lock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Wrong proofs of an address in a second that cost it nothing.
const FREE: u32 = 16;
const WINDOW: Duration = Duration::from_secs(1);
pub const SPACING: Duration = Duration::from_millis(100);
pub const LONGEST_WAIT: Duration = Duration::from_secs(2);
const SLOW_FOR: Duration = Duration::from_secs(10);
/// Addresses that are remembered. When there are more, the one that was wrong least recently is forgotten.
const MOST: usize = 1024;

#[derive(Debug)]
struct Guesser {
    /// When the window began, and the wrong proofs in it.
    since: Instant,
    wrong: u32,
    last: Instant,
    /// Until when it is slowed down.
    slow_until: Option<Instant>,
    /// When the next answer may be given.
    next: Instant,
}

/// The addresses from which wrong proofs came.
#[derive(Debug, Default)]
pub struct Guesses(Mutex<HashMap<IpAddr, Guesser>>);

impl Guesses {
    /// How long an answer to this address has to wait. `None`: too long; the client should try again later.
    pub fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let mut guessers = lock(&self.0);
        let Some(guesser) = guessers.get_mut(&host(address)) else { return Some(Duration::ZERO) };
        if guesser.slow_until.is_none_or(|end| now >= end) {
            return Some(Duration::ZERO);
        }
        let turn = guesser.next.max(now);
        let wait = turn.saturating_duration_since(now);
        if wait > LONGEST_WAIT {
            return None;
        }
        guesser.next = turn + SPACING;
        Some(wait)
    }

    /// Notes a wrong proof.
    pub fn note_wrong(&self, address: IpAddr, now: Instant) {
        let mut guessers = lock(&self.0);
        let host = host(address);
        if guessers.len() >= MOST && !guessers.contains_key(&host) {
            let oldest = guessers.iter().min_by_key(|(_, guesser)| guesser.last).map(|(host, _)| *host);
            oldest.map(|oldest| guessers.remove(&oldest));
        }
        let new = || Guesser { since: now, wrong: 0, last: now, slow_until: None, next: now };
        let guesser = guessers.entry(host).or_insert_with(new);
        if now.saturating_duration_since(guesser.since) >= WINDOW {
            (guesser.since, guesser.wrong) = (now, 0);
        }
        guesser.wrong += 1;
        guesser.last = now;
        let is_slow = guesser.slow_until.is_some_and(|end| now < end);
        if is_slow || guesser.wrong > FREE {
            guesser.slow_until = Some(now + SLOW_FOR);
        }
    }
}

/// What counts as one address: for IPv6 the 64-bit network, within which a host chooses its address.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(if address.is_loopback() { 1 } else { 0 });
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn a_few_wrong_proofs_cost_nothing_and_many_cost_their_own_address_only() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        for _ in 0..FREE {
            guesses.note_wrong(ONE, now);
        }
        assert_eq!(guesses.wait(ONE, now), Some(Duration::ZERO));
        guesses.note_wrong(ONE, now);
        let waits: Vec<_> = (0..30).map(|_| guesses.wait(ONE, now)).collect();
        assert_eq!(waits[..3], [0, 1, 2].map(|turn| Some(SPACING * turn)));
        assert_eq!(waits.iter().flatten().max(), Some(&LONGEST_WAIT), "bounded");
        assert_eq!(waits[29], None, "and told to come again");
        assert_eq!(guesses.wait(OTHER, now), Some(Duration::ZERO));
        let later = now + SLOW_FOR;
        assert_eq!(guesses.wait(ONE, later), Some(Duration::ZERO), "it ends");
    }

    #[test]
    fn a_wrong_proof_now_and_then_costs_nothing() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        for second in 0..100 {
            let now = start + WINDOW * second;
            (0..FREE).for_each(|_| guesses.note_wrong(ONE, now));
            assert_eq!(guesses.wait(ONE, now), Some(Duration::ZERO));
        }
    }

    #[test]
    fn the_addresses_that_are_remembered_are_bounded_and_a_network_counts_as_one() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        for number in 0..3 * MOST as u32 {
            guesses.note_wrong(IpAddr::V4(number.into()), now + Duration::from_millis(number as u64));
        }
        assert_eq!(guesses.0.lock().unwrap().len(), MOST);
        let network = |host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host));
        assert_eq!(host(network(1)), host(network(2)));
        assert_eq!(host("::ffff:10.0.0.1".parse().unwrap()), ONE);
        assert_eq!(host("::1".parse().unwrap()).to_string(), "::101:101:101:101");
    }
}
