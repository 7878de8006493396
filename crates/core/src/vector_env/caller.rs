//! The caller: asks environments, waits for their answers, and notices workers that died and environments that hang.

use super::VectorEnv;
use super::layout::{Answer, Geometry, MAX_ARGUMENT, Request, env_range};
#[cfg(not(loom))]
use super::parent::ProcessWatch;
use crate::error::{Error, Result};
use crate::segment::{Activity, Owner, Role, Seat};
use crate::sys::sync::{Ordering, Woken};
use crate::sys::wait::{Deadline, LivenessPoll};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the caller knows about one environment.
#[derive(Debug, Clone, Copy)]
struct EnvRequest {
    /// The request under way.
    number: u32,
    /// `None`: nothing was asked, or the answer was taken.
    since: Option<Instant>,
}

/// Why [`Caller::wait`] came back.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Environments that have answered, with their flags. They are idle now.
    Answered(Vec<(usize, u8)>),
    /// Workers that have died with requests unanswered.
    Died(Vec<usize>),
    /// Environments that have not answered for longer than they may.
    Hung(Vec<usize>),
}

/// The caller's handle. One thread at a time uses it.
#[derive(Debug)]
pub struct Caller {
    vector_env: Arc<VectorEnv>,
    seat: Seat,
    requests: Vec<EnvRequest>,
    /// Workers that have not sat down yet, by their process.
    #[cfg(not(loom))]
    expected: Vec<Option<ProcessWatch>>,
    /// Where the next look for answers starts, so that none is passed over for ever.
    turn: usize,
}

impl Caller {
    /// Makes a vector environment, under an automatic name.
    pub fn create(name: &str, workers: usize, envs: usize, data_bytes: usize) -> Result<Caller> {
        let vector_env = Arc::new(VectorEnv::create(name, Geometry::new(workers, envs, data_bytes)?)?);
        let seat = Seat::take(vector_env.segment().clone(), Role::Consumer, |_| {})?;
        // SYNC control.caller: Release here, Acquire in `Worker::caller_lives`.
        vector_env.protocol().control.caller.store(Owner::pack_maybe(seat.owner()), Ordering::Release);
        vector_env.segment().publish()?;
        Ok(Caller {
            vector_env,
            seat,
            requests: vec![EnvRequest { number: 0, since: None }; envs],
            #[cfg(not(loom))]
            expected: (0..workers).map(|_| None).collect(),
            turn: 0,
        })
    }

    /// Forgets the process of a worker, before another one is started in its place.
    pub fn vacate(&mut self, worker: usize) -> Result<()> {
        let line =
            self.vector_env.protocol().lines.get(worker).ok_or_else(|| self.no_such("worker", worker))?;
        line.owner.store(Owner::pack_maybe(None), Ordering::Relaxed);
        Ok(())
    }

    /// A process was started as this worker. Until it sits down, its process is what tells that it lives.
    #[cfg(not(loom))]
    pub fn expect(&mut self, worker: usize, pid: u32) -> Result<()> {
        if worker >= self.expected.len() {
            return Err(self.no_such("worker", worker));
        }
        self.expected[worker] = Some(ProcessWatch::process(pid)?);
        Ok(())
    }

    fn no_such(&self, what: &'static str, value: usize) -> Error {
        let geometry = self.vector_env.geometry();
        let range = format!("there are {} environments and {} workers", geometry.envs, geometry.workers);
        Error::out_of_range(what, value, range)
    }

    /// Asks environments, and wakes their workers. Their rows are their workers' until they have answered.
    pub fn ask(&mut self, envs: impl Iterator<Item = usize>, what: u8, argument: u32) -> Result<()> {
        if argument > MAX_ARGUMENT {
            let range = format!("at most {MAX_ARGUMENT}");
            return Err(Error::out_of_range("argument", argument as usize, range));
        }
        let protocol = self.vector_env.protocol();
        let now = Instant::now();
        let mut woken: Vec<usize> = Vec::new();
        for env in envs {
            if env >= self.requests.len() {
                protocol.wake_workers(woken.into_iter());
                return Err(self.no_such("environment", env));
            }
            self.requests[env] = EnvRequest { number: protocol.ask(env, what, argument), since: Some(now) };
            let worker = protocol.worker_of(env);
            if woken.last() != Some(&worker) {
                woken.push(worker);
            }
        }
        protocol.wake_workers(woken.into_iter());
        Ok(())
    }

    /// There is a message for a worker.
    pub fn post_message(&self, worker: usize) -> Result<()> {
        if worker >= self.vector_env.geometry().workers {
            return Err(self.no_such("worker", worker));
        }
        self.vector_env.protocol().post_message(worker);
        Ok(())
    }

    /// Whether an environment was asked, and its answer not taken.
    pub fn is_outstanding(&self, env: usize) -> bool {
        self.requests.get(env).is_some_and(|request| request.since.is_some())
    }

    /// How many were.
    pub fn outstanding(&self) -> usize {
        self.requests.iter().filter(|request| request.since.is_some()).count()
    }

    /// Sleeps until `count` environments (or all that were asked, if those are fewer) have answered, and takes their
    /// answers; or until something is wrong: a worker died, an environment has not answered for `limit`, or `deadline` has passed.
    pub fn wait(&mut self, count: usize, limit: Option<Duration>, deadline: Deadline) -> Result<Outcome> {
        let count = count.min(self.outstanding());
        if let Some(answers) = self.take(count) {
            return Ok(Outcome::Answered(answers));
        }
        self.seat.begin(Activity::WaitData, 1);
        let outcome = self.sleep(count, limit, deadline);
        self.seat.end(Activity::WaitData, 1);
        outcome
    }

    fn sleep(&mut self, count: usize, limit: Option<Duration>, deadline: Deadline) -> Result<Outcome> {
        let vector_env = self.vector_env.clone();
        let event = &vector_env.protocol().control.answered;
        let (mut poll, mut is_due) = (LivenessPoll::start(), false);
        loop {
            if let Some(answers) = self.take(count) {
                return Ok(Outcome::Answered(answers));
            }
            // After the look: a worker may have died between its answer and the wake-up.
            if is_due && let Some(trouble) = self.find_trouble(limit)? {
                return Ok(trouble);
            }
            let ticket = vector_env.protocol().announce(self.outstanding() - count);
            if let Some(answers) = self.take(count) {
                return Ok(Outcome::Answered(answers));
            }
            if vector_env.protocol().is_closed() {
                return Err(Error::Closed);
            }
            let Some(left) = deadline.remaining() else { return Err(Error::Timeout) };
            let pause = self.time_to_overdue(limit).map_or(left, |time| time.min(left)).min(poll.pause());
            match event.wait(ticket, pause) {
                Woken::Interrupted => return Err(Error::Interrupted),
                woken => is_due = woken == Woken::Timeout,
            }
        }
    }

    /// Workers that died, or environments that hang.
    fn find_trouble(&self, limit: Option<Duration>) -> Result<Option<Outcome>> {
        self.check_words()?;
        let (dead, hung) = (self.dead(), self.overdue(limit));
        Ok(if !dead.is_empty() {
            Some(Outcome::Died(dead))
        } else {
            (!hung.is_empty()).then_some(Outcome::Hung(hung))
        })
    }

    /// `count` answers, if there are so many; in turn.
    fn take(&mut self, count: usize) -> Option<Vec<(usize, u8)>> {
        let vector_env = self.vector_env.clone();
        let (protocol, envs) = (vector_env.protocol(), self.requests.len());
        let order = (self.turn..envs).chain(0..self.turn);
        let mut answers = Vec::with_capacity(count);
        for env in order {
            if answers.len() == count {
                break;
            }
            let request = self.requests[env];
            if request.since.is_some()
                && let Some(flags) = protocol.answer_of(env, request.number)
            {
                answers.push((env, flags));
            }
        }
        if answers.len() < count {
            return None;
        }
        answers.iter().for_each(|&(env, _)| self.requests[env].since = None);
        // All of them: no turn to remember, and ascending order the next time.
        self.turn = match answers.last() {
            Some(&(last, _)) if count < envs => (last + 1) % envs,
            _ => 0,
        };
        Some(answers)
    }

    /// A missing answer will not come if the request was changed, or if one was answered that was never asked.
    fn check_words(&self) -> Result<()> {
        let protocol = self.vector_env.protocol();
        for env in self.missing() {
            let number = self.requests[env].number;
            // Our own word: only we write it.
            if Request::unpack(protocol.asked[env].load(Ordering::Relaxed)).number != number {
                return Err(self.vector_env.damaged("a request is not the one that was asked"));
            }
            // Answers are to requests of before, modulo 2³².
            let answer = Answer::unpack(protocol.answered[env].load(Ordering::Relaxed)).number;
            if (answer.wrapping_sub(number) as i32) > 0 {
                return Err(self.vector_env.damaged("an answer is to a request that was never asked"));
            }
        }
        Ok(())
    }

    /// Those that were asked and have not answered.
    pub fn missing(&self) -> Vec<usize> {
        let protocol = self.vector_env.protocol();
        let is_missing = |&env: &usize| {
            let request = self.requests[env];
            request.since.is_some() && protocol.answer_of(env, request.number).is_none()
        };
        (0..self.requests.len()).filter(is_missing).collect()
    }

    /// How long until the first of those has had its time.
    fn time_to_overdue(&self, limit: Option<Duration>) -> Option<Duration> {
        let limit = limit?;
        let oldest = self.missing().into_iter().filter_map(|env| self.requests[env].since).min()?;
        Some(limit.saturating_sub(oldest.elapsed()))
    }

    fn overdue(&self, limit: Option<Duration>) -> Vec<usize> {
        let Some(limit) = limit else { return Vec::new() };
        let is_overdue =
            |&env: &usize| self.requests[env].since.is_some_and(|since| since.elapsed() >= limit);
        self.missing().into_iter().filter(is_overdue).collect()
    }

    /// Workers that have died with requests unanswered.
    fn dead(&self) -> Vec<usize> {
        let protocol = self.vector_env.protocol();
        let mut workers: Vec<usize> = self.missing().into_iter().map(|env| protocol.worker_of(env)).collect();
        workers.dedup();
        workers.retain(|&worker| self.is_dead(worker));
        // One that answered while we looked, and then left, owes us nothing.
        let missing = self.missing();
        workers.retain(|&worker| missing.iter().any(|&env| protocol.worker_of(env) == worker));
        workers
    }

    fn is_dead(&self, worker: usize) -> bool {
        // SYNC line.owner: Acquire here, Release in `Worker::attach`. Its lock is held, if it lives.
        let word = self.vector_env.protocol().lines[worker].owner.load(Ordering::Acquire);
        match Owner::unpack_maybe(word) {
            Some(owner) => !self.seat.is_alive(owner),
            #[cfg(not(loom))]
            None => self.expected[worker].as_ref().is_some_and(ProcessWatch::has_ended),
            #[cfg(loom)]
            None => false,
        }
    }

    /// The environments of a worker.
    pub fn env_range(&self, worker: usize) -> std::ops::Range<usize> {
        let geometry = self.vector_env.geometry();
        env_range(worker, geometry.workers, geometry.envs)
    }

    pub fn vector_env(&self) -> &Arc<VectorEnv> {
        &self.vector_env
    }
}
