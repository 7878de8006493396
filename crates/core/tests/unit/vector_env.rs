//! Vector environments: one caller and its workers, in threads over a real segment.

use rollway_core::Error;
use rollway_core::sys::sync::Ordering;
use rollway_core::sys::wait::Deadline;
use rollway_core::vector_env::layout::{Answer, Geometry, MAX_ARGUMENT, Request, env_range};
use rollway_core::vector_env::{Call, Caller, Outcome, Worker};
use std::time::Duration;

use crate::fixture::{Name, ends};

const LONG: Deadline = Deadline::Never;

fn caller(workers: usize, envs: usize) -> (Caller, Name) {
    let name = Name::unique();
    (Caller::create(&name, workers, envs, 4096).unwrap(), name)
}

/// Answers every request with the low bits of its argument, until it is closed.
fn serve(name: &str, index: usize) {
    let worker = Worker::attach(name, index).unwrap();
    loop {
        let call = match worker.wait() {
            Err(Error::Interrupted) => continue, // It has watched in vain; the next wait is slept.
            call => call.unwrap(),
        };
        match call {
            Call::Tasks(tasks) => {
                let flags: Vec<u8> = tasks.iter().map(|task| task.request.argument as u8).collect();
                worker.answer(&tasks, &flags);
            }
            Call::Message => {}
            Call::Closed => return,
        }
    }
}

#[test]
fn words_survive_packing() {
    for request in [
        Request { number: 0, argument: 0, what: 0 },
        Request { number: u32::MAX, argument: MAX_ARGUMENT, what: u8::MAX },
        Request { number: 7, argument: 9, what: 3 },
    ] {
        assert_eq!(Request::unpack(request.pack()), request);
        let answer = Answer { number: request.number, flags: request.what };
        assert_eq!(Answer::unpack(answer.pack()), answer);
    }
}

#[test]
fn every_environment_belongs_to_exactly_one_worker() {
    for envs in 1..40 {
        for workers in 1..=envs {
            let geometry = Geometry::new(workers, envs, 0).unwrap();
            let mut next = 0;
            for worker in 0..geometry.workers {
                let range = env_range(worker, workers, envs);
                assert_eq!(range.start, next);
                assert!(!range.is_empty());
                next = range.end;
            }
            assert_eq!(next, envs);
        }
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    for (workers, envs) in [(0, 1), (1, 0), (3, 2), (1001, 2000)] {
        assert!(matches!(Geometry::new(workers, envs, 0), Err(Error::OutOfRange { .. })));
    }
    assert!(matches!(Geometry::new(1, 1, usize::MAX), Err(Error::OutOfRange { .. })));
}

#[test]
fn all_answers_come_with_their_flags_and_in_order() {
    let (mut caller, name) = caller(2, 5);
    std::thread::scope(|scope| {
        for index in 0..2 {
            let name = &name;
            scope.spawn(move || serve(name, index));
        }
        for step in 0..500u32 {
            caller.ask(0..5, 1, step % 200).unwrap();
            let outcome = caller.wait(5, None, LONG).unwrap();
            let expected = (0..5).map(|env| (env, (step % 200) as u8)).collect();
            assert_eq!(outcome, Outcome::Answered(expected));
            assert_eq!(caller.outstanding(), 0);
        }
        caller.vector_env().close().unwrap();
    });
}

#[test]
fn part_of_the_answers_come_in_turn_and_nobody_is_passed_over() {
    let (mut caller, name) = caller(1, 5);
    let worker = Worker::attach(&name, 0).unwrap();
    caller.ask(0..5, 1, 0).unwrap();
    let mut order = Vec::new();
    for _ in 0..5 {
        if let Call::Tasks(tasks) = worker.wait().unwrap() {
            worker.answer(&tasks, &[0; 5]);
        }
        let Outcome::Answered(answers) = caller.wait(2, None, LONG).unwrap() else { panic!() };
        order.extend(answers.iter().map(|&(env, _)| env));
        caller.ask(answers.iter().map(|&(env, _)| env), 1, 0).unwrap();
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    caller.vector_env().close().unwrap();
}

#[test]
fn half_of_the_answers_are_waited_for_while_workers_go_on() {
    let (mut caller, name) = caller(3, 7);
    std::thread::scope(|scope| {
        for index in 0..3 {
            let name = &name;
            scope.spawn(move || serve(name, index));
        }
        caller.ask(0..7, 1, 0).unwrap();
        caller.wait(7, None, LONG).unwrap(); // Everybody is there.
        caller.ask(0..7, 1, 0).unwrap();
        for _ in 0..500 {
            let Outcome::Answered(answers) = caller.wait(3, None, LONG).unwrap() else { panic!() };
            assert_eq!(answers.len(), 3);
            assert!(answers.iter().all(|&(env, _)| !caller.is_outstanding(env)));
            caller.ask(answers.iter().map(|&(env, _)| env), 1, 0).unwrap();
        }
        caller.vector_env().close().unwrap();
    });
}

#[test]
fn a_worker_that_leaves_with_work_undone_is_reported() {
    let (mut caller, name) = caller(2, 4);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&name, 0));
        let worker = Worker::attach(&name, 1).unwrap();
        caller.ask(0..4, 1, 0).unwrap();
        assert!(matches!(worker.wait().unwrap(), Call::Tasks(tasks) if tasks.len() == 2));
        drop(worker);
        assert_eq!(caller.wait(4, None, LONG).unwrap(), Outcome::Died(vec![1]));
        assert_eq!(caller.missing(), vec![2, 3]);
        // A successor is asked again, and the old request counts no more.
        caller.vacate(1).unwrap();
        scope.spawn(|| serve(&name, 1));
        caller.ask(2..4, 1, 9).unwrap();
        let expected = vec![(0, 0), (1, 0), (2, 9), (3, 9)];
        assert_eq!(caller.wait(4, None, LONG).unwrap(), Outcome::Answered(expected));
        caller.vector_env().close().unwrap();
    });
}

#[test]
fn an_answer_to_a_request_that_was_asked_again_counts_for_nothing() {
    let (mut caller, name) = caller(1, 1);
    let worker = Worker::attach(&name, 0).unwrap();
    caller.ask(0..1, 1, 0).unwrap();
    let Call::Tasks(old) = worker.wait().unwrap() else { panic!() };
    caller.ask(0..1, 1, 0).unwrap();
    worker.answer(&old, &[7]);
    assert!(matches!(caller.wait(1, None, Deadline::Now), Err(Error::Timeout)));
    let Call::Tasks(new) = worker.wait().unwrap() else { panic!() };
    worker.answer(&new, &[8]);
    assert_eq!(caller.wait(1, None, LONG).unwrap(), Outcome::Answered(vec![(0, 8)]));
    caller.vector_env().close().unwrap();
}

#[test]
fn an_environment_that_takes_too_long_is_reported_and_may_still_answer() {
    let (mut caller, name) = caller(2, 2);
    let quick = Worker::attach(&name, 0).unwrap();
    let slow = Worker::attach(&name, 1).unwrap();
    caller.ask(0..2, 1, 0).unwrap();
    let Call::Tasks(tasks) = quick.wait().unwrap() else { panic!() };
    quick.answer(&tasks, &[0]);
    let limit = Some(Duration::from_millis(20));
    assert_eq!(caller.wait(2, limit, LONG).unwrap(), Outcome::Hung(vec![1]));
    let Call::Tasks(tasks) = slow.wait().unwrap() else { panic!() };
    slow.answer(&tasks, &[0]);
    assert_eq!(caller.wait(2, limit, LONG).unwrap(), Outcome::Answered(vec![(0, 0), (1, 0)]));
    caller.vector_env().close().unwrap();
}

#[test]
fn a_process_that_ends_before_it_sits_down_is_reported() {
    let (mut caller, _name) = caller(1, 1);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    caller.vacate(0).unwrap();
    caller.expect(0, child.id()).unwrap();
    caller.ask(0..1, 1, 0).unwrap();
    assert_eq!(caller.wait(1, None, LONG).unwrap(), Outcome::Died(vec![0]));
    child.wait().unwrap();
    caller.vector_env().close().unwrap();
}

#[test]
fn messages_wake_a_worker_one_by_one_and_work_comes_first() {
    let (mut caller, name) = caller(1, 1);
    let worker = Worker::attach(&name, 0).unwrap();
    caller.post_message(0).unwrap();
    caller.post_message(0).unwrap();
    caller.ask(0..1, 1, 0).unwrap();
    let Call::Tasks(tasks) = worker.wait().unwrap() else { panic!() };
    worker.answer(&tasks, &[0]);
    assert_eq!(worker.wait().unwrap(), Call::Message);
    assert_eq!(worker.wait().unwrap(), Call::Message);
    caller.vector_env().close().unwrap();
    assert_eq!(worker.wait().unwrap(), Call::Closed);
}

#[test]
fn strangers_and_numbers_out_of_range_are_refused() {
    let (mut caller, name) = caller(1, 2);
    assert!(matches!(Worker::attach(&name, 1), Err(Error::OutOfRange { .. })));
    assert!(matches!(Worker::attach("no-such-vector-env", 0), Err(Error::NotFound { .. })));
    assert!(matches!(caller.ask(2..3, 1, 0), Err(Error::OutOfRange { .. })));
    assert!(matches!(caller.ask(0..1, 1, MAX_ARGUMENT + 1), Err(Error::OutOfRange { .. })));
    assert!(matches!(caller.post_message(1), Err(Error::OutOfRange { .. })));
    caller.vector_env().close().unwrap();
    assert!(matches!(Worker::attach(&name, 0), Err(Error::NotFound { .. })));
}

#[test]
fn messages_that_nobody_can_have_sent_are_damage_and_keep_no_worker_busy() {
    let (caller, name) = caller(1, 1);
    let worker = Worker::attach(&name, 0).unwrap();
    caller.vector_env().protocol().lines[0].messages_sent.store(1 << 40, Ordering::Relaxed);
    let result = ends(move || {
        loop {
            match worker.wait() {
                Ok(Call::Message) | Err(Error::Interrupted) => {}
                other => return other,
            }
        }
    });
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    caller.vector_env().close().unwrap();
}

#[test]
fn an_answer_to_a_request_that_was_never_asked_is_damage_and_no_endless_wait() {
    let (mut caller, _name) = caller(1, 2);
    caller.ask(0..2, 1, 0).unwrap();
    let vector_env = caller.vector_env().clone();
    vector_env.protocol().answered[1].store(Answer { number: 9, flags: 0 }.pack(), Ordering::Relaxed);
    let (mut caller, result) = ends(move || {
        let result = caller.wait(2, None, LONG);
        (caller, result)
    });
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    vector_env.protocol().answered[1].store(0, Ordering::Relaxed);
    vector_env.protocol().asked[0]
        .store(Request { number: 5, argument: 0, what: 1 }.pack(), Ordering::Relaxed);
    let (caller, result) = ends(move || {
        let result = caller.wait(2, None, LONG);
        (caller, result)
    });
    assert!(matches!(result, Err(Error::Corrupt { .. })), "a request that somebody else changed: {result:?}");
    caller.vector_env().close().unwrap();
}
