//! The reconnect loop: connects, serves the connection until it ends, and connects again, until something ends it for good.
//! The threads of clients and of mirrors run it.

use super::dial::{Connector, TIME_IS_UP};
use super::disconnect::{Disconnect, Ended};
use crate::net::wire::limits::SILENCES;
use std::time::{Duration, Instant};

/// Pauses between attempts: the first, the longest while the learner answers, the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const SHORT_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// One attempt to connect and shake hands.
const ATTEMPT: Duration = Duration::from_secs(10);

/// When the learner was last heard, and whether it ever let us in.
#[derive(Debug)]
pub struct Contact {
    /// When the learner was last heard, or the connection was lost.
    pub heard: Instant,
    pinged: Instant,
    pub welcomed: bool,
    /// Connections that were tried.
    pub attempts: u32,
}

impl Contact {
    pub fn new() -> Contact {
        let now = Instant::now();
        Contact { heard: now, pinged: now, welcomed: false, attempts: 0 }
    }

    /// Whether to ping now. An error, with the time, after three keepalive intervals of silence.
    pub fn check_silence(&mut self, keepalive: Duration) -> Result<bool, Duration> {
        let silence = self.heard.elapsed();
        if silence >= keepalive * SILENCES {
            return Err(silence);
        }
        let ping = silence >= keepalive && self.pinged.elapsed() >= keepalive;
        if ping {
            self.pinged = Instant::now();
        }
        Ok(ping)
    }
}

/// One end of a connection that is made again when it breaks.
pub trait Reconnecting {
    /// A connection on which it was welcomed.
    type Link;
    /// Why it ended for good.
    type End;

    fn connector(&self) -> &Connector;
    fn contact(&mut self) -> &mut Contact;
    fn connect(&mut self, deadline: Instant) -> Result<Self::Link, Disconnect<Self::End>>;
    /// Works with a connection until that ends.
    fn serve(&mut self, link: Self::Link) -> Disconnect<Self::End>;
    /// A number that grows when something gets through.
    fn progress(&self) -> u64;
    /// Counts a failed attempt.
    fn connect_failed(&self);
    /// Notes why there is no connection.
    fn disconnected(&self, _why: &str) {}
    fn end(&self, ended: Ended) -> Self::End;
}

/// Connects and serves, again and again, until something ends it: a panic, too.
pub fn run<C: Reconnecting>(client: &mut C) -> C::End {
    let work = std::panic::AssertUnwindSafe(|| reconnect(client));
    std::panic::catch_unwind(work).unwrap_or_else(|_| {
        let why = "the thread of this connection failed; this is a bug in Rollway";
        client.end(Ended::Lost(why.to_owned()))
    })
}

fn reconnect<C: Reconnecting>(client: &mut C) -> C::End {
    let (mut pause, mut reason) = (Duration::ZERO, None);
    loop {
        if client.connector().take_redirect() {
            client.contact().heard = Instant::now(); // The new address has all of the time.
            (pause, reason) = (Duration::ZERO, None);
        }
        let (heard, welcomed) = (client.contact().heard, client.contact().welcomed);
        let give_up_at = heard + client.connector().time_limit(welcomed);
        let disconnect = match client.connect((Instant::now() + ATTEMPT).min(give_up_at)) {
            Ok(link) => {
                let before = client.progress();
                reason = None;
                let disconnect = client.serve(link);
                client.contact().heard = Instant::now(); // The learner is away from now on.
                // The learner answers. Unless nothing gets through, there is no reason for a long pause.
                pause = if client.progress() == before { pause.min(SHORT_PAUSE) } else { Duration::ZERO };
                disconnect
            }
            Err(Disconnect::Final(end)) => return end,
            Err(disconnect) => {
                client.connect_failed();
                disconnect
            }
        };
        match disconnect {
            Disconnect::Broken(why) => reason = Some(why),
            Disconnect::Late(why) => _ = reason.get_or_insert(why),
            Disconnect::Final(end) => return end,
        }
        let why = reason.as_deref().unwrap_or(TIME_IS_UP);
        client.disconnected(why);
        let (heard, welcomed) = (client.contact().heard, client.contact().welcomed);
        let (away, limit) = (heard.elapsed(), client.connector().time_limit(welcomed));
        if away >= limit && !client.connector().is_redirected() {
            return client.end(match welcomed {
                true => Ended::Lost(format!("the learner has been away for {away:.1?} ({why})")),
                false => Ended::Unreachable(why.to_owned()),
            });
        }
        pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        client.connector().pause(pause, heard + limit);
        if client.connector().is_closing() {
            return client.end(Ended::Closed);
        }
    }
}
