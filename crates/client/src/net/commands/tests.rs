//! What the driver says of commands whose answers never came. It is driven by hand, without a network: what it would send is
//! looked at, and what a server would say is put in. Streams on which nothing is said are in `silence.rs`.

mod silence;

use std::sync::{Arc, Mutex};

use tenure_core::{Caller, Command, Secret, Token};
use tenure_wire::proto::server_frame::Content;

use super::*;

type Outcome = Arc<Mutex<Option<Result<Done, CallError>>>>;

fn id() -> SessionId {
    SessionId { number: SessionNumber::new(7), secret: Secret::new([7; 16]) }
}

/// A driver with one session, that a server has room for.
fn driver() -> Driver {
    let (_, inbox) = mpsc::unbounded_channel();
    let mut driver = Driver::new(Endpoints::default(), Dialer::default(), inbox);
    driver.window = 100;
    driver.hear(ToStream::Listen(id(), Arc::new(|_| {})));
    driver
}

/// Hands a release in; what is said of it comes to be in the outcome.
fn release(driver: &mut Driver) -> Outcome {
    let outcome = Outcome::default();
    let told = outcome.clone();
    let by = Caller { session: id(), number: Some(1), lowest_awaited: 1 };
    let token = Token::try_from(1u64).ok();
    let command = Command::Release { by, resource: "r".parse().expect("a name"), token };
    let then = Box::new(move |answer| *told.lock().expect("no panic") = Some(answer));
    driver.hear(ToStream::Submit(command, then));
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
    let outcome = outcome.lock().expect("no panic").take().expect("it was told");
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
