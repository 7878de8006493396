//! What each client has delivered, so that a client that lost its connection can go on where it was.
//!
//! A session is a client's random name and the number of the next sample that the server expects of it. It outlives its
//! connections. Sessions are also in the segment of the ring or the records ([`crate::segment::sessions`]), where the next learner
//! that resumes it finds them.
//!
//! E1  Only the holder of the session's lock commits its samples and moves its `next`, with no await in between. A second
//!     connection of the same client ends the first one, and learns `next` only when it has the lock: no commit of the first
//!     is under way then, and none will follow. Bytes of a connection that the client gave up long ago may still arrive: the
//!     client numbers its connections, and only a younger one takes over.
//! E2  A session with a connection is never forgotten. Without one it is forgotten after a while, or when there are too many
//!     sessions; those whose clients said goodbye go first.
//! E3  A client with samples of unknown fate is never let into a session that was forgotten.
//! E4  While a session has a connection, its entry in the segment is this server's, and moves with `next`. Without one, the entry
//!     is free for another server of the segment, so it is read again at the next connection. A session of which samples were
//!     refused has no entry until its client must have been told: the next learner could not tell it.

use super::record_ingress::{Delivered, RecordIngress};
use super::sample_ingress::Run;
use crate::net::wire::frame::{Hello, Refusal};
use crate::net::wire::limits::MAX_FRAME_RECORDS;
use crate::ring::producer::Origin;
use crate::segment::sessions::{HeldSession, Lookup, SessionId, SessionStore};
use crate::sys::thread::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedMutexGuard, watch};

/// Where a session stands. Guarded by its lock (E1).
#[derive(Debug, Default)]
pub struct Progress {
    next: u64,
    /// `(first, count)` of what was refused lately: a client that lost its connection is told again.
    refused: VecDeque<(u64, u32)>,
    /// After so many frames the client has been told of all refusals.
    untold_frames: usize,
    /// The producer in whose segment the session is, and its name.
    place: Option<(Arc<dyn SessionStore>, SessionId)>,
    /// Its entry there (E4). `None`: it has no connection, or a refusal, or all entries are in use.
    stored: Option<HeldSession>,
}

impl Progress {
    /// Every sample below is committed, or was dropped or refused as the policy says.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Reads the entry again, now that the session has a connection (E4).
    fn load(&mut self) -> Result<(), (Refusal, String)> {
        let Some((store, id)) = &self.place else { return Ok(()) };
        if let Some(stored) = find(store, *id, Duration::MAX)? {
            (self.next, self.stored) = (stored.next(), Some(stored));
        }
        self.store();
        Ok(())
    }

    /// Gives the session an entry, if it has none and may have one.
    fn store(&mut self) {
        if self.untold_frames == 0
            && self.stored.is_none()
            && let Some((store, id)) = &self.place
        {
            self.stored = HeldSession::add(store, *id, self.next).ok().flatten();
        }
    }

    /// Counts a frame that is settled.
    pub fn note_frame(&mut self) {
        if self.untold_frames > 0 {
            self.untold_frames -= 1;
            self.store();
        }
    }

    /// Commits a run of the next samples.
    pub fn commit(&mut self, run: Run, origins: impl Iterator<Item = Origin>) {
        self.next += run.len() as u64;
        run.commit_each(origins, self.stored.as_ref());
        debug_assert!(self.stored.as_ref().is_none_or(|stored| stored.next() == self.next));
    }

    /// Commits the next records. `end`: what is behind the last of them and below this was dropped.
    pub fn commit_records(&mut self, ingress: &RecordIngress, records: Vec<Delivered>, end: u64) {
        ingress.commit_each(records, self.stored.as_ref());
        self.skip_to(end);
    }

    /// Steps over samples or records that were dropped or refused.
    pub fn skip_to(&mut self, next: u64) {
        if next > self.next {
            self.next = next;
            self.stored.iter().for_each(|stored| stored.skip_to(next));
        }
    }

    /// Notes a refusal. A client that keeps to its credit knows all refusals but those of its last `window` frames. A frame that
    /// arrives slowly may have a refusal for each record; adjacent ones become one.
    pub fn refuse(&mut self, first: u64, count: u32, window: usize) {
        self.stored.take().into_iter().for_each(HeldSession::forget);
        self.untold_frames = window + 1; // This one is counted, too.
        match self.refused.back_mut() {
            Some((start, length)) if *start + u64::from(*length) == first && u32::MAX - *length >= count => {
                *length += count;
            }
            _ => self.refused.push_back((first, count)),
        }
        while self.refused.len() > window * MAX_FRAME_RECORDS {
            self.refused.pop_front();
        }
    }

    /// The refusals from `oldest` on, which the client may not know.
    pub fn refused_from(&self, oldest: u64) -> impl Iterator<Item = (u64, u32)> {
        self.refused.iter().filter_map(move |&(first, count)| {
            let (from, end) = (first.max(oldest), first + u64::from(count));
            (from < end).then(|| (from, (end - from) as u32))
        })
    }
}

/// Takes the entry of a session, if there is one. One without a connection for longer than `keep` is forgotten.
fn find(
    store: &Arc<dyn SessionStore>,
    id: SessionId,
    keep: Duration,
) -> Result<Option<HeldSession>, (Refusal, String)> {
    match HeldSession::take(store, id, keep) {
        Ok(Lookup::Taken(stored)) => Ok(Some(stored)),
        Ok(Lookup::Unknown) => Ok(None),
        Ok(Lookup::Held) => {
            let text = "this client has a connection to another server of the same ring or records, and can move when that has ended";
            Err((Refusal::Busy, text.to_owned()))
        }
        Err(error) => Err((Refusal::Closed, error.to_string())),
    }
}

#[derive(Debug)]
struct Session {
    producer_id: u32,
    progress: Arc<tokio::sync::Mutex<Progress>>,
    /// Counts the connections that came; a connection that is not the last one leaves.
    arrivals: watch::Sender<u64>,
    /// The client's own number of its youngest connection.
    attempt: u32,
    /// Connections now.
    connections: usize,
    left: Instant,
    /// Its client said goodbye. The session is kept, so that late bytes of it are known.
    finished: bool,
}

impl Session {
    fn new(producer_id: u32, progress: Progress) -> Session {
        Session {
            producer_id,
            progress: Arc::new(tokio::sync::Mutex::new(progress)),
            arrivals: watch::Sender::new(0),
            attempt: 0,
            connections: 0,
            left: Instant::now(),
            finished: false,
        }
    }
}

/// All sessions of a transport.
#[derive(Debug)]
pub struct Sessions {
    table: Mutex<HashMap<SessionId, Session>>,
    most: usize,
    keep: Duration,
    /// The producer in whose segment they are, too.
    store: Option<Arc<dyn SessionStore>>,
}

impl Sessions {
    /// At most so many, and those without a connection for so long. `store`: what commits what clients send.
    pub fn new(
        most: usize,
        keep: Duration,
        store: Option<Arc<dyn SessionStore>>,
    ) -> crate::error::Result<Sessions> {
        if let Some(store) = &store {
            HeldSession::release_dead(&**store)?;
        }
        Ok(Sessions { table: Mutex::default(), most, keep, store })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        lock(&self.table)
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Finds or makes the session of a client. `new_id` gives a number to a client that brought none.
    pub fn enter(
        self: &Arc<Self>,
        hello: &Hello,
        new_id: impl FnOnce() -> u32,
    ) -> Result<SessionLease, (Refusal, String)> {
        let mut table = self.lock();
        table.retain(|_, session| session.connections > 0 || session.left.elapsed() < self.keep);
        let mut resumed = true;
        match table.get_mut(&hello.session) {
            Some(session) if hello.attempt <= session.attempt => {
                return Err((Refusal::Busy, "a newer connection of this client is already here".to_owned()));
            }
            Some(session) if session.connections > 0 => {} // It has the entry.
            Some(session) => {
                if let Ok(mut progress) = session.progress.try_lock() {
                    progress.load()?;
                }
            }
            None => {
                let mut progress = self.find(hello)?;
                resumed = progress.stored.is_some();
                self.make_room(&mut table)?;
                progress.store();
                let producer_id = hello.producer_id.unwrap_or_else(new_id);
                table.insert(hello.session, Session::new(producer_id, progress));
            }
        }
        let session = table.get_mut(&hello.session).expect("it was found or made");
        session.attempt = hello.attempt;
        session.connections += 1;
        session.arrivals.send_modify(|count| *count += 1);
        Ok(SessionLease {
            sessions: self.clone(),
            id: hello.session,
            producer_id: session.producer_id,
            resumed,
            progress: session.progress.clone(),
            arrivals: session.arrivals.subscribe(),
        })
    }

    /// Where a client stands that has no session here: as the segment says, or as the client says if nothing of it can have arrived.
    fn find(&self, hello: &Hello) -> Result<Progress, (Refusal, String)> {
        let place = self.store.clone().map(|store| (store, hello.session));
        let stored = match &place {
            Some((store, id)) => find(store, *id, self.keep)?,
            None => None,
        };
        let next = stored.as_ref().map(HeldSession::next);
        if let Some(next) = next
            && (hello.oldest..=hello.next).contains(&next)
        {
            return Ok(Progress { next, place, stored, ..Progress::default() });
        }
        if hello.oldest != hello.next || next > Some(hello.next) {
            // The client knows how many: it may have sent more since it said hello.
            let text = "the learner does not know this client (it was restarted, or has forgotten it), so the fate of what it \
                 did not acknowledge is unknown";
            return Err((Refusal::SessionUnknown, text.to_owned())); // E3
        }
        // Since the segment was written, the client has sent to a learner with another segment.
        stored.into_iter().for_each(HeldSession::forget);
        Ok(Progress { next: hello.next, place, ..Progress::default() })
    }

    /// If there are too many sessions, forgets a finished one, or the one that has been without a connection for longest.
    fn make_room(&self, table: &mut HashMap<SessionId, Session>) -> Result<(), (Refusal, String)> {
        if table.len() < self.most {
            return Ok(());
        }
        let idle = table.iter().filter(|(_, session)| session.connections == 0);
        match idle.min_by_key(|(_, session)| (!session.finished, session.left)).map(|(id, _)| *id) {
            Some(oldest) => {
                table.remove(&oldest);
                Ok(())
            }
            None => {
                Err((Refusal::Busy, format!("the learner has {} clients, the most that it takes", self.most)))
            }
        }
    }
}

/// One connection's stay in a session.
#[derive(Debug)]
pub struct SessionLease {
    sessions: Arc<Sessions>,
    id: SessionId,
    pub producer_id: u32,
    /// The session was there.
    pub resumed: bool,
    progress: Arc<tokio::sync::Mutex<Progress>>,
    arrivals: watch::Receiver<u64>,
}

impl SessionLease {
    /// Waits until the connection before us has ended (E1).
    pub async fn progress(&self) -> OwnedMutexGuard<Progress> {
        self.progress.clone().lock_owned().await
    }

    /// Returns when another connection of the same client has come.
    pub fn succeeded(&self) -> impl Future<Output = ()> + 'static {
        let mut arrivals = self.arrivals.clone();
        async move {
            // The sender goes with the session, which lives as long as we do.
            if arrivals.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The client is done: this session is the first to be forgotten.
    pub fn finish(self) {
        if let Some(session) = self.sessions.lock().get_mut(&self.id) {
            session.finished = true;
            let progress = session.progress.try_lock();
            progress
                .into_iter()
                .for_each(|mut progress| progress.stored.iter_mut().for_each(HeldSession::finish));
        }
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(session) = self.sessions.lock().get_mut(&self.id) {
            session.connections = session.connections.saturating_sub(1);
            session.left = Instant::now();
            if session.connections == 0
                && let Ok(mut progress) = session.progress.try_lock()
            {
                progress.stored = None; // E4
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::wire::frame::Content;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn hello(name: u8, oldest: u64, next: u64) -> Hello {
        static ATTEMPT: AtomicU32 = AtomicU32::new(1);
        let attempt = ATTEMPT.fetch_add(1, Ordering::Relaxed);
        Hello {
            content: Content::Samples,
            session: [name; 16],
            producer_id: None,
            attempt,
            next,
            oldest,
            schema: Vec::new(),
        }
    }

    /// A frame that arrives slowly is refused record by record.
    #[test]
    fn every_refusal_of_the_last_frames_is_told_again_however_many_a_frame_has() {
        let mut progress = Progress::default();
        (0..60).for_each(|record| progress.refuse(record, 1, 1));
        assert_eq!(progress.refused_from(0).collect::<Vec<_>>(), [(0, 60)]);
        assert_eq!(progress.refused_from(28).collect::<Vec<_>>(), [(28, 32)]);
        assert_eq!(progress.refused_from(60).count(), 0);
        (0..200).for_each(|record| progress.refuse(100 + 2 * record, 1, 1));
        assert_eq!(progress.refused_from(0).count(), 201);
    }

    #[test]
    fn a_connection_that_comes_after_a_younger_one_does_not_take_over() {
        let sessions = Arc::new(Sessions::new(2, Duration::from_secs(60), None).unwrap());
        let (old, young) = (hello(1, 0, 0), hello(1, 0, 0));
        let session = sessions.enter(&young, || 7).unwrap();
        assert!(matches!(sessions.enter(&old, || 7), Err((Refusal::Busy, _))));
        assert!(!session.arrivals.has_changed().unwrap());
        assert!(sessions.enter(&hello(1, 0, 0), || 7).is_ok());
        assert!(session.arrivals.has_changed().unwrap());
    }

    #[test]
    fn a_session_is_remembered_and_the_oldest_idle_one_gives_way() {
        let sessions = Arc::new(Sessions::new(2, Duration::from_secs(60), None).unwrap());
        let first = sessions.enter(&hello(1, 0, 0), || 7).unwrap();
        assert!(!first.resumed);
        drop(first);
        let again = sessions.enter(&hello(1, 0, 5), || 8).unwrap();
        assert!(again.resumed && again.producer_id == 7);
        drop(sessions.enter(&hello(2, 0, 0), || 8).unwrap());
        let third = sessions.enter(&hello(3, 0, 0), || 9).unwrap(); // 2 is forgotten, 1 has a connection.
        assert_eq!(sessions.count(), 2);
        assert!(matches!(sessions.enter(&hello(2, 3, 5), || 9), Err((Refusal::SessionUnknown, _))));
        assert!(matches!(sessions.enter(&hello(4, 0, 0), || 9), Err((Refusal::Busy, _))));
        third.finish(); // Forgotten before clients that may come back.
        assert!(!sessions.enter(&hello(2, 5, 5), || 9).unwrap().resumed);
    }
}
