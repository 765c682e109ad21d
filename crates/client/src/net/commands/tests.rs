//! What the driver reports of commands whose answers never came. The test drives it by hand, without a
//! network: it looks at what would be sent and feeds in what a server would answer. Silent streams are in
//! `silence.rs`.

mod silence;

use std::sync::{Arc, Mutex};

use tenure_core::{Caller, Command, Secret, Token};
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::server_frame::Content;

use super::*;

type Outcome = Arc<Mutex<Option<Result<Done, CallError>>>>;

fn id() -> SessionId {
    SessionId { number: SessionNumber::new(7), secret: Secret::new([7; 16]) }
}

/// A driver with one session, that a server has room for.
fn driver() -> Driver {
    let (_, inbox) = mpsc::unbounded_channel();
    let directory = Directory::new(&crate::endpoints::Endpoints::default());
    let mut driver =
        Driver::new(directory, Dialer::default(), EndpointErrors::default(), Execution::default(), inbox);
    driver.window = 100;
    driver.receive(ToStream::Listen(id(), Arc::new(|_| {})));
    driver
}

fn session(number: u64) -> SessionId {
    SessionId { number: SessionNumber::new(number), secret: Secret::new([7; 16]) }
}

/// Hands a release in; what is said of it comes to be in the outcome.
fn release(driver: &mut Driver) -> Outcome {
    let outcome = Outcome::default();
    let frames = outcome.clone();
    let by = Caller { session: id(), number: Some(1), lowest_awaited: 1 };
    let token = Token::try_from(1u64).ok();
    let command = Command::Release { by, resource: "r".parse().expect("a name"), token, rest: None };
    let callback = Box::new(move |answer| *frames.lock().expect("no panic") = Some(answer));
    driver.receive(ToStream::Submit(command, callback));
    outcome
}

/// Sends what there is to send; the server answers the attaching, and nothing else.
fn send_all(driver: &mut Driver) {
    while let Some(message) = driver.next_message() {
        for frame in message.frames {
            if matches!(frame.command, Some(Asked::Attach(_))) {
                let attached = Content::Attached(proto::Attached::default());
                driver.answered(frame.frame, id().number, attached).expect("the stream goes on");
            }
        }
    }
}

fn close(driver: &mut Driver) {
    driver.pushed(id().number, Content::PushClosed(proto::Closed::default()));
}

fn effect(outcome: &Outcome) -> Effect {
    let outcome = outcome.lock().expect("no panic").take().expect("it has an outcome");
    let error = outcome.expect_err("its session has ended");
    assert!(matches!(&error, CallError::Refused(no) if no.code == Code::UnknownSession), "{error}");
    error.effect()
}

#[test]
fn the_end_of_a_session_says_nothing_of_a_command_that_was_sent() {
    let mut driver = driver();
    let outcome = release(&mut driver);
    send_all(&mut driver);
    close(&mut driver);
    assert_eq!(effect(&outcome), Effect::Unknown);
}

#[test]
fn what_was_never_sent_was_not_applied() {
    let mut driver = driver();
    let outcome = release(&mut driver);
    close(&mut driver);
    assert_eq!(effect(&outcome), Effect::NotApplied);
    let outcome = release(&mut driver);
    assert_eq!(effect(&outcome), Effect::NotApplied, "nor what is handed in afterwards");
}

#[test]
fn a_no_to_a_repetition_says_nothing_of_the_first_transmission() {
    let mut driver = driver();
    let outcome = release(&mut driver);
    let frame = *driver.unanswered.keys().next().expect("it is under way");
    send_all(&mut driver);
    driver.broke(&CallError::Unreachable { tried: Vec::new() });
    driver.window = 100;
    send_all(&mut driver);
    let no = ApiError::from(tenure_core::Refusal::UnknownSession);
    driver.answered(frame, id().number, Content::Error(no.into())).expect("the stream goes on");
    assert_eq!(effect(&outcome), Effect::Unknown);
}

#[test]
fn a_no_to_the_only_transmission_is_a_no() {
    let mut driver = driver();
    let outcome = release(&mut driver);
    let frame = *driver.unanswered.keys().next().expect("it is under way");
    send_all(&mut driver);
    let no = ApiError::from(tenure_core::Refusal::UnknownSession);
    driver.answered(frame, id().number, Content::Error(no.into())).expect("the stream goes on");
    assert_eq!(effect(&outcome), Effect::NotApplied);
}

/// A client with many sessions spent its time looking through all of them at every turn of its loop.
#[test]
fn a_turn_costs_what_there_is_to_do_and_not_what_there_is() {
    const SESSIONS: u64 = 10_000;
    let mut driver = driver();
    for number in 1..=SESSIONS {
        driver.receive(ToStream::Listen(session(number), Arc::new(|_| {})));
    }
    driver.window = 2 * SESSIONS;
    while let Some(message) = driver.next_message() {
        for frame in message.frames {
            let attached = Content::Attached(proto::Attached::default());
            driver.answered(frame.frame, SessionNumber::new(frame.session), attached).expect("it goes on");
        }
    }
    driver.sessions.looked_at.set(0);
    for _ in 0..100 {
        // One turn of the loop, in which one session has something to say.
        let outcome = release(&mut driver);
        assert!(!driver.is_resting());
        let message = driver.next_message().expect("there is something to send");
        assert!(driver.next_message().is_none());
        let released = Content::Released(proto::StreamReleased { released: true });
        driver.answered(message.frames[0].frame, id().number, released).expect("it goes on");
        assert!(outcome.lock().expect("no panic").is_some());
    }
    let looked_at = driver.sessions.looked_at.get();
    assert!(looked_at <= 1_000, "{looked_at} sessions were looked at in 100 turns");
}

/// What waits for its session to be attached is sent callback, in order, and is not looked at before.
#[test]
fn commands_wait_for_their_own_session_only() {
    let mut driver = driver();
    let (first, second) = (release(&mut driver), release(&mut driver));
    let attach = driver.next_message().expect("the session is attached first");
    assert_eq!(attach.frames.len(), 1);
    assert!(driver.next_message().is_none() && driver.to_send.is_empty());
    let attached = Content::Attached(proto::Attached::default());
    driver.answered(attach.frames[0].frame, id().number, attached).expect("the stream goes on");
    let frames: Vec<u64> =
        driver.next_message().expect("both").frames.iter().map(|frames| frames.frame).collect();
    assert_eq!(frames.len(), 2);
    assert!(frames[0] < frames[1]);
    close(&mut driver);
    assert_eq!((effect(&first), effect(&second)), (Effect::Unknown, Effect::Unknown));
}

#[test]
fn a_session_that_was_refused_for_the_moment_is_attached_again() {
    let mut driver = driver();
    let outcome = release(&mut driver);
    let attach = driver.next_message().expect("the session is attached first");
    let busy = ApiError::new(Code::NoLeader, "nobody leads");
    driver.answered(attach.frames[0].frame, id().number, Content::Error(busy.into())).expect("it goes on");
    assert!(driver.is_resting() && driver.next_message().is_none());
    driver.rested();
    assert!(!driver.is_resting());
    send_all(&mut driver);
    close(&mut driver);
    assert_eq!(effect(&outcome), Effect::Unknown, "it was sent");
}

/// A session that has ended has nothing at stake: those that are left are as patient as before it.
#[test]
fn a_session_that_ended_makes_nobody_impatient() {
    let mut driver = driver();
    let patient = driver.patience.wait(0);
    driver.receive(ToStream::Detect(id().number, Duration::from_millis(500)));
    assert_eq!(driver.patience.wait(0), Duration::from_millis(500));
    close(&mut driver);
    assert_eq!(driver.patience.wait(0), patient);
}
