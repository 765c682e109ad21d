//! Every client acquires and releases its own resource in a loop; and what happens to that when the leader
//! fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{long_ttl, prefix};
use crate::error::BenchError;
use crate::meter::{Gaps, Reading, Tally, Window};
use crate::pace::Pace;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::Report;
use crate::target::{Result, Session, Store, draw};

/// How long a client waits before it tries again what failed.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// How long the last operations may take to end after the time is over.
const END_WITHIN: Duration = Duration::from_secs(10);

/// What happens in the middle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nothing.
    None,
    /// The leader's process is killed.
    Kill,
    /// Leadership is handed on.
    StepDown,
}

/// What all clients of a run share.
struct SharedByClients<S: Store> {
    store: S,
    pace: Pace,
    window: Window,
    gaps: Gaps,
    ttl: Duration,
    prefix: String,
    open_loop: bool,
}

pub async fn run<S: Store>(plan: &Plan, progress: Progress, event: Event) -> Result<Report> {
    if event == Event::Kill && plan.leader_pid.is_none() {
        return Err(BenchError::new("name the leader's process with --leader-pid"));
    }
    let store = S::reach(plan).await?;
    let ttl = long_ttl(plan);
    let mut sessions = Vec::new();
    {
        let _bar = progress.open("opening sessions");
        for number in 0..plan.clients {
            sessions.push(store.open(number, ttl).await?);
        }
    }
    let window = Window::of(plan);
    let shared = Arc::new(SharedByClients {
        store,
        pace: Pace::new(plan.rate),
        window,
        gaps: Gaps::new(window),
        ttl,
        prefix: prefix(),
        open_loop: plan.rate.is_some(),
    });
    let mut clients = JoinSet::new();
    for (number, session) in sessions.into_iter().enumerate() {
        clients.spawn(shared.clone().client(number, session));
    }
    let _bar = progress.over(plan.workload.name(), plan.warm_up + plan.duration);
    tokio::time::sleep_until(window.from.into()).await;
    let before = Reading::now(plan);
    if event != Event::None {
        tokio::time::sleep_until((window.from + plan.duration / 4).into()).await;
    }
    match event {
        Event::None => {}
        Event::Kill => kill(plan.leader_pid.unwrap_or_default())?,
        Event::StepDown => shared.store.step_down().await?,
    }
    tokio::time::sleep_until(window.until.into()).await;
    let after = Reading::now(plan);
    let mut tally = Tally::default();
    let ended = tokio::time::timeout(END_WITHIN, async {
        while let Some(client) = clients.join_next().await {
            tally.merge(&client.map_err(|error| BenchError::new(format!("a client failed: {error}")))?);
        }
        Ok::<_, BenchError>(())
    });
    match ended.await {
        Ok(outcome) => outcome?,
        // Whoever hangs has been counted by the gap; in a run without faults nobody may.
        Err(_) if event == Event::None => return Err(BenchError::new("clients were never answered")),
        Err(_) => {}
    }
    let mut report = Report::of(plan);
    before.fill(&after, plan, &tally, &mut report);
    if event != Event::None {
        report.figure("longest_gap_ms", shared.gaps.longest().as_secs_f64() * 1_000.0);
    }
    Ok(report)
}

/// `kill -9`, without waiting for it: the clients share this thread.
fn kill(pid: u32) -> Result<()> {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "kill -KILL \"$0\"", &pid.to_string()]);
    let started = command.spawn();
    started.map(drop).map_err(|error| BenchError::new(format!("the leader cannot be killed: {error}")))
}

impl<S: Store> SharedByClients<S> {
    async fn client(self: Arc<Self>, number: usize, mut session: S::Session) -> Tally {
        let mut tally = Tally::default();
        let mut resource = format!("{}/{number}", self.prefix);
        loop {
            let due = self.pace.due().await;
            if due >= self.window.until {
                return tally;
            }
            let outcome = cycle(&mut session, &resource).await;
            let ended = Instant::now();
            match outcome {
                Ok(()) => {
                    self.gaps.done(ended);
                    // In an open loop what was due counts, however late it ended: leaving the late ones out
                    // would be the omission that open loops are there to avoid.
                    let counts =
                        if self.open_loop { due >= self.window.from } else { self.window.counts(due, ended) };
                    if counts {
                        tally.add(ended - due);
                    }
                }
                Err(_) => {
                    tally.errors += u64::from(due >= self.window.from);
                    if !self.recover(number, &mut session, &mut resource).await {
                        return tally;
                    }
                }
            }
        }
    }

    /// Makes the client able to go on: gives back what may be held, or begins anew elsewhere.
    async fn recover(&self, number: usize, session: &mut S::Session, resource: &mut String) -> bool {
        while Instant::now() < self.window.until {
            if session.connected() {
                if session.clear(resource).await.is_ok() {
                    return true;
                }
            } else if let Ok(opened) = self.store.open(number, self.ttl).await {
                *session = opened;
                // The old session may still hold the old one.
                *resource = format!("{}/{number}-{:08x}", self.prefix, draw() as u32);
                return true;
            }
            tokio::time::sleep(TRY_AGAIN_AFTER).await;
        }
        false
    }
}

async fn cycle<S: Session>(session: &mut S, resource: &str) -> Result<()> {
    let mut place = session.queue(resource).await?;
    session.granted(&mut place).await?;
    session.release(place).await
}
