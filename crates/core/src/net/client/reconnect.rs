//! The reconnect loop: connects, serves the connection until it ends, and connects again, until something ends it for good. The
//! thread of a client and that of a mirror both run it.

use super::dial::{ATTEMPT, Connector, FIRST_PAUSE, LONGEST_PAUSE, SHORT_PAUSE, TIME_IS_UP};
use super::failure::Failure;
use std::time::{Duration, Instant};

/// Why there is no connection any more.
pub enum Disconnect<E> {
    /// May be better with the next.
    Broken(String),
    /// The same, but it only says that the time was over: a reason from before says more.
    Late(String),
    /// There will be no other.
    Final(E),
}

impl<E> Disconnect<E> {
    /// `give_up`: what ends it, of a failure that another attempt does not mend.
    pub fn of(failure: Failure, give_up: impl FnOnce(Failure) -> E) -> Disconnect<E> {
        match failure {
            Failure::Passing(why) => Disconnect::Broken(why),
            Failure::Late(why) => Disconnect::Late(why),
            failure => Disconnect::Final(give_up(failure)),
        }
    }
}

/// One end of a connection that is made again when it breaks.
pub trait Reconnecting {
    /// A connection on which it was welcomed.
    type Link;
    /// Why it ended for good.
    type End;

    fn connector(&self) -> &Connector;
    /// When the learner was last heard, or the connection was lost.
    fn contact(&mut self) -> &mut Instant;
    /// How long it tries without contact: longer, most often, once it was welcomed.
    fn limit(&self) -> Duration;
    fn connect(&mut self, deadline: Instant) -> Result<Self::Link, Disconnect<Self::End>>;
    /// Works with a connection until that ends.
    fn serve(&mut self, link: Self::Link) -> Disconnect<Self::End>;
    /// A number that grows when something gets through.
    fn progress(&self) -> u64;
    /// Counts a failed attempt.
    fn connect_failed(&self);
    /// Takes note of why there is no connection.
    fn disconnected(&self, _why: &str) {}
    /// The end when the learner has been away for too long, when it was closed.
    fn away_too_long(&self, away: Duration, why: &str) -> Self::End;
    fn closed(&self) -> Self::End;
}

/// Connects and serves, again and again, until something ends it.
pub fn reconnect<C: Reconnecting>(client: &mut C) -> C::End {
    let (mut pause, mut reason) = (Duration::ZERO, None);
    loop {
        let give_up_at = *client.contact() + client.limit();
        let disconnect = match client.connect((Instant::now() + ATTEMPT).min(give_up_at)) {
            Ok(link) => {
                let before = client.progress();
                reason = None;
                let disconnect = client.serve(link);
                *client.contact() = Instant::now(); // From here on it counts how long the learner is away.
                // Somebody is there. Unless nothing gets through, there is no reason to keep away.
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
        let (away, limit) = (client.contact().elapsed(), client.limit());
        if away >= limit {
            return client.away_too_long(away, why);
        }
        pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        let give_up_at = *client.contact() + limit;
        client.connector().pause(pause, give_up_at);
        if client.connector().is_closing() {
            return client.closed();
        }
    }
}
