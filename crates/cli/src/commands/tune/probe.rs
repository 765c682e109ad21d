//! Measures what a holder on this machine would see of the store: round trips, renewals, and how late it is
//! woken. It judges nothing.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_client::proto::leases_client::LeasesClient;
use tenure_client::proto::sessions_client::SessionsClient;
use tenure_client::{Attempt, proto, random_nonce};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{Caller, EndReason, Measured, Moment, Nonce, SessionId, Spread};
use tenure_wire::grpc;

use crate::args::default_holder;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

/// The TTL of the session that is renewed. Nothing depends on it: it is closed at the end, and if that fails
/// it ends by itself.
const TTL: Duration = Duration::from_secs(10);
/// Between two questions: a holder's own pace is slower, and a probe must not be a load.
const PAUSE: Duration = Duration::from_millis(5);
/// How long each sleep is asked to be whose end is watched.
const NAP: Duration = Duration::from_millis(1);
/// The cells of the bar.
const BAR_CELLS: usize = 30;

/// Measures for so long.
pub async fn measure(length: Duration, context: &Context<'_>) -> Result<Measured, CommandError> {
    let clock = SystemClock;
    let napper = Napper::start();
    let session = open(context).await?;
    let measured = ask_again_and_again(&clock, length, &session, context).await;
    close(session, context).await;
    let gaps = napper.stop();
    let (round_trips, renewals) = measured?;
    match (Spread::of(&round_trips), Spread::of(&renewals), Spread::of(&gaps)) {
        (Some(round_trip), Some(renewal), Some(gap)) => Ok(Measured { round_trip, renewal, gap }),
        _ => Err(CommandError::with_hint(
            Exit::Other,
            "nothing was measured: the time was up before the first answer",
            "measure longer, with --for 10s",
        )),
    }
}

async fn ask_again_and_again(
    clock: &SystemClock,
    length: Duration,
    session: &str,
    context: &Context<'_>,
) -> Result<(Vec<Duration>, Vec<Duration>), CommandError> {
    let mut bar = Bar::new(context);
    let (mut round_trips, mut renewals) = (Vec::new(), Vec::new());
    let started = clock.now();
    loop {
        let elapsed = clock.now().longest_since(started);
        if elapsed >= length {
            bar.clear();
            return Ok((round_trips, renewals));
        }
        bar.show(elapsed.as_secs_f64() / length.as_secs_f64(), renewals.len());
        round_trips.push(timed(clock, look(context)).await?);
        renewals.push(timed(clock, renew(session, context)).await?);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn timed(
    clock: &SystemClock,
    question: impl Future<Output = Result<(), CommandError>>,
) -> Result<Duration, CommandError> {
    let asked: Moment = clock.now();
    question.await?;
    Ok(clock.now().longest_since(asked))
}

/// Asks for something that changes nothing and that any node answers by itself.
async fn look(context: &Context<'_>) -> Result<(), CommandError> {
    let request = proto::LeaseListRequest { limit: Some(1), stale: true, ..Default::default() };
    let send = |channel, request| async move { LeasesClient::new(channel).list(request).await };
    context.read(request, send).await?;
    Ok(())
}

async fn open(context: &Context<'_>) -> Result<String, CommandError> {
    let request = grpc::open_request(&default_holder(), TTL, Some(Nonce::new(random_nonce())), 0);
    let send = |channel, attempt: Attempt| {
        let request = proto::SessionOpenRequest { number: attempt.number, ..request.clone() };
        async move { SessionsClient::new(channel).open(request).await }
    };
    Ok(context.change_repeatably(send).await?.session)
}

async fn renew(session: &str, context: &Context<'_>) -> Result<(), CommandError> {
    let renewal = proto::SessionRenewal { session: session.to_owned(), number: 0 };
    let request = proto::SessionRenewRequest { renewals: vec![renewal] };
    let send = |channel, _| {
        let request = request.clone();
        async move { SessionsClient::new(channel).renew(request).await }
    };
    let answer = context.change_repeatably(send).await?;
    if answer.unknown.is_empty() {
        return Ok(());
    }
    Err(CommandError::with_hint(
        Exit::Lost,
        "the session of the probe ended while it was measuring",
        "this process or the store stood still for longer than its TTL of 10s; that is the result",
    ))
}

async fn close(session: String, context: &Context<'_>) {
    // If this fails the session ends by itself.
    let Ok(session) = session.parse::<SessionId>() else { return };
    let request = grpc::close_request(&Caller::unnumbered(session), EndReason::Released);
    let send = |channel, request| async move { SessionsClient::new(channel).close(request).await };
    let _ = context.change(request, send).await;
}

/// A thread that asks for short sleeps and notes how much later it was woken: what a holder between check and
/// act would have stood still for.
struct Napper {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Duration>>,
}

impl Napper {
    fn start() -> Napper {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let clock = SystemClock;
            let mut gaps = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let asleep = clock.now();
                std::thread::sleep(NAP);
                gaps.push(clock.now().longest_since(asleep).saturating_sub(NAP));
            }
            gaps
        });
        Napper { stop, thread }
    }

    fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// How far the measuring has come, for a terminal.
struct Bar {
    shown: bool,
    steps: usize,
}

impl Bar {
    fn new(context: &Context<'_>) -> Bar {
        Bar { shown: std::io::stderr().is_terminal() && !context.output.is_json(), steps: 0 }
    }

    fn show(&mut self, part: f64, renewals: usize) {
        let steps = 1 + (part.clamp(0.0, 1.0) * BAR_CELLS as f64) as usize;
        if !self.shown || steps == self.steps {
            return;
        }
        self.steps = steps;
        let done = steps.min(BAR_CELLS);
        let (full, rest) = ("█".repeat(done), "░".repeat(BAR_CELLS - done));
        let _ = write!(std::io::stderr(), "\rmeasuring {full}{rest} {renewals} renewals ");
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\u{1b}[K");
        }
    }
}
