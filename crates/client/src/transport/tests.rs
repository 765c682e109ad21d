//! The rule of `transport.rs`, case by case. The listeners accept connections and say nothing: what an
//! attempt answers is given by the test itself.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};

use tonic::{Response, Status};

use super::*;

/// An address at which connections are accepted, and the listener that does it.
fn listening() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    (listener.local_addr().expect("a bound listener has an address"), listener)
}

/// An address at which connections are refused.
fn closed() -> SocketAddr {
    listening().0
}

fn transport(addresses: &[SocketAddr]) -> Transport {
    let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    Transport::new(&texts.join(",").parse().expect("addresses are endpoints"))
}

fn call(repeat: Repeat) -> Call {
    let second = Duration::from_secs(1);
    Call { repeat, within: 5 * second, attempt_within: Some(5 * second), persistent: false }
}

fn refusal(code: Code) -> Status {
    ApiError::new(code, code.as_str()).into()
}

/// Makes a call whose attempts get these answers, one after the other, and counts the attempts.
async fn run(
    transport: &Transport,
    call: Call,
    mut answers: Vec<Result<&'static str, Status>>,
) -> (Result<&'static str, CallError>, Vec<u64>) {
    answers.reverse();
    let answers = RefCell::new(answers);
    let numbers = RefCell::new(Vec::new());
    let send = |_, attempt: Attempt| {
        numbers.borrow_mut().push(attempt.number);
        let answer = answers.borrow_mut().pop().expect("no more attempts than the test expects");
        async { answer.map(Response::new) }
    };
    let result = transport.call(call, send).await;
    assert!(answers.borrow().is_empty(), "fewer attempts than the test expects");
    (result, numbers.into_inner())
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_passed_over() {
    let (open, _listener) = listening();
    let transport = transport(&[closed(), open]);
    let (result, numbers) = run(&transport, call(Repeat::Never), vec![Ok("done")]).await;
    assert_eq!(result, Ok("done"));
    assert_eq!(numbers, [2], "the first attempt was never sent");
    // The endpoint that answered is asked first from now on.
    let (result, numbers) = run(&transport, call(Repeat::Never), vec![Ok("done")]).await;
    assert_eq!((result, numbers), (Ok("done"), vec![1]));
}

#[tokio::test]
async fn nobody_there_means_nothing_was_applied() {
    let (result, _) = run(&transport(&[closed(), closed()]), call(Repeat::Never), vec![]).await;
    let error = result.expect_err("nobody listens");
    assert_eq!(error.effect(), Effect::NotApplied);
    let CallError::Unreachable { tried } = error else { panic!("{error}") };
    assert_eq!(tried.len(), 2);
    assert!(tried[0].why.contains("refused"), "{}", tried[0]);
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_not_asked_for_twice() {
    let (open, _listener) = listening();
    let (result, numbers) =
        run(&transport(&[open]), call(Repeat::Never), vec![Err(Status::unavailable("broken pipe"))]).await;
    assert_eq!(result.expect_err("no answer").effect(), Effect::Unknown);
    assert_eq!(numbers, [1]);
}

#[tokio::test]
async fn a_harmless_call_is_repeated_under_a_number_of_its_own() {
    let (open, _listener) = listening();
    let lost = || Err(Status::unavailable("broken pipe"));
    let unknown = Err(refusal(Code::UnknownOutcome));
    let answers = vec![lost(), unknown, lost(), Ok("done")];
    let (result, numbers) = run(&transport(&[open]), call(Repeat::Harmless), answers).await;
    assert_eq!(result, Ok("done"));
    assert_eq!(numbers, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_no_that_passes_is_outwaited_and_any_other_no_is_the_answer() {
    let (open, _listener) = listening();
    let busy = Err(refusal(Code::NoLeader));
    let (result, _) = run(&transport(&[open]), call(Repeat::Never), vec![busy, Ok("done")]).await;
    assert_eq!(result, Ok("done"));

    let held = Err(refusal(Code::Held));
    let (result, _) = run(&transport(&[open]), call(Repeat::Harmless), vec![held]).await;
    let CallError::Refused(refused) = result.expect_err("held") else { panic!("it was refused") };
    assert_eq!(refused.code, Code::Held);
}

#[tokio::test]
async fn a_possibly_applied_attempt_is_not_forgotten_over_later_refusals() {
    let (open, _listener) = listening();
    let mut impatient = call(Repeat::Harmless);
    impatient.within = Duration::from_millis(30);
    // How many attempts fit into the time is not the point, and not the same on every machine.
    let broken = |_, _| async { Err::<Response<()>, _>(Status::unavailable("broken pipe")) };
    let result = transport(&[open, closed()]).call(impatient, broken).await;
    assert_eq!(result.expect_err("never answered").effect(), Effect::Unknown);
}

#[tokio::test]
async fn a_read_without_an_answer_has_changed_nothing() {
    let (open, _listener) = listening();
    let mut impatient = call(Repeat::Read);
    impatient.within = Duration::from_millis(1);
    let gone = |_, _| async { Err::<Response<()>, _>(Status::unavailable("gone")) };
    let result = transport(&[open]).call(impatient, gone).await;
    assert_eq!(result.expect_err("never answered").effect(), Effect::NotApplied);
}

#[tokio::test]
async fn silence_ends_an_attempt_at_its_limit() {
    let (open, _listener) = listening();
    let mut short = call(Repeat::Never);
    short.attempt_within = Some(Duration::from_millis(20));
    let silent = |_, _| std::future::pending::<Result<Response<()>, Status>>();
    let error = transport(&[open]).call(short, silent).await.expect_err("nobody answers");
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(error.to_string().contains("no answer within 20ms"), "{error}");
}

#[tokio::test]
async fn another_kind_of_server_is_distinguished_from_silence() {
    let (open, _listener) = listening();
    let foreign = Err(Status::unimplemented(""));
    let (result, _) = run(&transport(&[open]), call(Repeat::Never), vec![foreign]).await;
    let error = result.expect_err("not ours");
    assert_eq!(error.effect(), Effect::NotApplied);
    assert!(error.to_string().contains("does not know this call"), "{error}");
}
