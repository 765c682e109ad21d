//! The driver of `run` and `elect`: acquires, starts, watches, and carries out what the logic decides. It
//! contains no rule about a tree's life.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, set_child_subreaper, waitpid};
use tenure_client::{
    AcquireError, Backoff, CallError, Client, Code, Endpoints, Leader, Lease, LeaseState, OpenError, Permit,
    Session,
};
use tenure_clock::{MachineMoment, SystemClock};
use tenure_core::{HolderName, Mode, Policies, ResourceName, TimingNumbers};
use tenure_wire::words::span;

use super::channel::{FromGuardian, Presented, ToGuardian};
use super::guardian::Guardian;
use super::logic::{Action, Cause, Ending, Event, Finish, Hold, Margins, Outcome, RunLogic};
use super::proc::{self, Handle};
use super::signals::{FROM_TERMINAL, Signals, TSTP, asks_to_end, ends_a_waiter};
use super::tree::{Contain, Tree};
use crate::args::{Globals, TlsArgs};
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;

/// How long the guardian may take to say how a child ended that was seen dead.
const EXPLAINED_WITHIN: Duration = Duration::from_millis(100);
/// The guardian's deadline comes this part of the margin later than ours: as long as `run` can, it is `run`
/// that kills.
const GUARDIAN_LATER: u32 = 2;
/// Bounds of the time between two looks at the lease.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(100);
/// Delays before a queue is joined again.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// What is to be run, and under what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What has to be held.
    pub resource: ResourceName,
    /// The command.
    pub command: Vec<OsString>,
    /// How long the lease lives without a renewal.
    pub ttl: Duration,
    /// Who holds it, for people.
    pub holder: HolderName,
    /// How it is held.
    pub mode: Mode,
    /// What else is asked for.
    pub policies: Policies,
    /// How long to wait in the queue: not at all, for so long, or as long as it takes.
    pub wait: Option<Option<Duration>>,
    /// How the tree is held together.
    pub contain: Contain,
    /// How long a drain may take.
    pub grace: Option<Duration>,
    /// How long before its deadline the tree is asked to stop.
    pub stop_before: Option<Duration>,
    /// How long before its deadline the tree is killed.
    pub kill_before: Option<Duration>,
    /// How long to wait for a successor after a drain.
    pub hand_over: Option<Duration>,
    /// What is run while waiting in the queue, by a shell.
    pub warm_up: Option<String>,
    /// What is published while it is held, for `tenure leader` and observers.
    pub value: Option<String>,
    /// Go on for as long as it takes when the store cannot be reached or the queue was lost.
    pub persistent: bool,
    /// The command gets the id of the session, which is all that it takes to end it.
    pub pass_session: bool,
}

/// How one term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The child ended.
    Child(Ending),
    /// The tree was stopped.
    Stopped(Cause),
    /// This process was asked to end before it had started anything.
    Asked(i32),
}

/// What every term has at hand.
pub struct Stage<'a> {
    output: &'a Output,
    endpoints: &'a Endpoints,
    tls: &'a TlsArgs,
    client: Client,
    signals: Signals,
    /// The signal by which this process was asked to end.
    pub asked: Option<i32>,
    /// Children that were here before: whatever was `exec`ed into us had them.
    inherited: BTreeSet<i32>,
    shares_terminal: bool,
    timeout: Duration,
}

/// The lease, and everything that hangs on it.
struct Held {
    session: Session,
    lease: Lease,
    permit: Permit,
}

impl<'a> Stage<'a> {
    /// Catches signals and adopts orphans, from now on.
    pub fn new(
        output: &'a Output,
        globals: &'a Globals,
        timeout: Duration,
    ) -> Result<Stage<'a>, CommandError> {
        let other = |error: io::Error| {
            CommandError::said(Exit::Other, format!("processes cannot be watched: {error}"))
        };
        let inherited = proc::own_children();
        set_child_subreaper(Some(getpid())).map_err(|error| other(error.into()))?;
        let signals = Signals::catch().map_err(other)?;
        // In the foreground of a terminal the child must be so, too, or it could not read.
        let foreground = rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
        let shares_terminal = io::stdin().is_terminal() && foreground;
        let (endpoints, tls) = (&globals.endpoints, &globals.tls);
        let client = Client::connect(endpoints);
        Ok(Stage {
            output,
            endpoints,
            tls,
            client,
            signals,
            asked: None,
            inherited,
            shares_terminal,
            timeout,
        })
    }

    /// Waits until this process is asked to end.
    pub async fn asked_to_end(&mut self) -> i32 {
        loop {
            let signal = self.signals.next().await;
            if ends_a_waiter(signal) {
                return signal;
            }
        }
    }

    /// Acquires, runs the command, and ends when nothing of it is left.
    pub async fn term(&mut self, plan: &Plan) -> Result<Ended, CommandError> {
        plan.margins()?;
        let other = |what: &str, why: &dyn std::fmt::Display| {
            CommandError::said(Exit::Other, format!("{what}: {why}"))
        };
        let tree = Tree::make(plan.contain).map_err(|why| other("the tree cannot be contained", &why))?;
        // Before anything is held: what can be prepared costs no moment of the lease.
        let guardian = Guardian::spawn(&tree, self.shares_terminal, &plan.command);
        let mut guardian = guardian.map_err(|error| other("no guardian could be started", &error))?;
        let held = self.join_queue(plan, &mut guardian).await;
        let ended = match held {
            Ok(Some(held)) => self.hold(plan, &tree, guardian, held).await,
            Ok(None) | Err(_) => {
                guardian.kill();
                let nobody = BTreeSet::from([guardian.pid]);
                tree.kill_all(&self.inherited, &nobody, None, |_| {}).await;
                held.map(|_| Ended::Asked(self.asked.unwrap_or_default()))
            }
        };
        tree.remove();
        ended
    }

    /// Waits in the queue and warms up; nothing if this process was asked to end meanwhile.
    async fn join_queue(
        &mut self,
        plan: &Plan,
        guardian: &mut Guardian,
    ) -> Result<Option<Held>, CommandError> {
        let acquiring = acquire(&self.client, plan, self.timeout);
        let warming = warm_up(plan);
        let ready = async { tokio::try_join!(acquiring, warming) };
        tokio::pin!(ready);
        loop {
            tokio::select! {
                biased;
                signal = self.signals.next() => if ends_a_waiter(signal) {
                    self.asked = Some(signal);
                    return Ok(None);
                },
                () = guardian.dead() => {
                    return Err(CommandError::with_hint(
                        Exit::Other,
                        "the guardian was killed before anything was started",
                        "nothing runs without one; run it again",
                    ));
                }
                held = &mut ready => return held.map(|(held, ())| Some(held)),
            }
        }
    }

    /// Runs the command for as long as the lease is held.
    async fn hold(
        &mut self,
        plan: &Plan,
        tree: &Tree,
        guardian: Guardian,
        held: Held,
    ) -> Result<Ended, CommandError> {
        let margins = plan.margins()?;
        let deadline = deadline_of(&held.lease);
        guardian.send(&ToGuardian::Start {
            environment: environment(plan, &held, self.endpoints),
            deadline: deadline.into(),
            kill_before: margins.hard / GUARDIAN_LATER,
            session: held.session.id().to_string(),
            endpoints: self.endpoints.to_string(),
            credential: Presented::of(self.endpoints),
            tls: Box::new(self.tls.clone()),
        });
        let token = held.permit.token();
        let resource = &plan.resource;
        self.output
            .talk(&format!("tenure: {resource} is held under token {token}; contained by {}", tree.name()));
        let logic = RunLogic::new(margins, plan.grace, deadline);
        let look_every = (margins.hard / 4).clamp(LOOK_MIN, LOOK_MAX);
        let watch =
            Watch { tree, guardian, logic, look_every, child: None, child_pid: None, unsent: Vec::new() };
        let finish = watch.run(self, &held.lease).await;
        self.end(plan, held, finish).await;
        Ok(match finish.outcome {
            Outcome::Child(ending) => Ended::Child(ending),
            Outcome::Stopped(cause) => Ended::Stopped(cause),
        })
    }

    /// The tree is dead: now, and not before, the lease goes back.
    async fn end(&self, plan: &Plan, held: Held, finish: Finish) {
        let Held { session, lease, permit } = held;
        drop(permit);
        if let Some(early) = session.ended_early() {
            self.output.complain(&ended_early(early));
        }
        if !finish.clean {
            session.died().await;
        } else if let Some(seen_within) = plan.hand_over.filter(|_| self.asked.is_some()) {
            // If it cannot be given back like this, closing the session does.
            let _ = lease.hand_over(self.timeout, seen_within).await;
            session.close().await;
        } else {
            session.close().await;
        }
    }
}

/// What is said of a store that let a session run out too early.
fn ended_early(by: Duration) -> String {
    format!(
        "the store ended the session {} before its deadline by this machine's clock: the leader's clock runs faster than \
         rho allows, or this machine's clock runs slow, or the session was ended by somebody else. Only fences protect \
         what was written; see TenureLeaderClockFast in the operations guide",
        span(by)
    )
}

/// One tree while it runs.
struct Watch<'a> {
    tree: &'a Tree,
    guardian: Guardian,
    logic: RunLogic,
    look_every: Duration,
    child: Option<Handle>,
    child_pid: Option<i32>,
    /// Signals for a child that may run already, but that the guardian has not named yet.
    unsent: Vec<Signal>,
}

impl Watch<'_> {
    async fn run(mut self, stage: &mut Stage<'_>, lease: &Lease) -> Finish {
        let mut changes = lease.changes();
        let mut ended = false;
        // Seen dead, and the guardian has not said how.
        let mut unexplained: Option<tokio::time::Instant> = None;
        loop {
            let (hold, now) = read(lease);
            let wait = self.logic.next_look(hold, now).min(self.look_every);
            let event = tokio::select! {
                biased;
                message = self.guardian.next() => match message {
                    Some(message) => self.receive(stage, message),
                    None => Event::GuardianDied,
                },
                () = dead(&self.child), if unexplained.is_none() => {
                    unexplained = Some(tokio::time::Instant::now() + EXPLAINED_WITHIN);
                    Event::Look
                }
                () = until(unexplained) => Event::ChildEnded(None),
                signal = stage.signals.next() => match self.signal_received(stage, signal) {
                    Some(event) => event,
                    None => continue,
                },
                change = changes.next(), if !ended => {
                    ended = change.is_none();
                    Event::Look
                }
                () = tokio::time::sleep(wait) => Event::Look,
            };
            if let Some(finish) = self.carry_out(stage, lease, event).await {
                return finish;
            }
        }
    }

    async fn carry_out(&mut self, stage: &mut Stage<'_>, lease: &Lease, event: Event) -> Option<Finish> {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let (hold, now) = read(lease);
            for action in self.logic.handle(event, hold, now) {
                match action {
                    Action::SendDeadline(deadline) => {
                        self.guardian.send(&ToGuardian::Deadline(deadline.into()));
                    }
                    Action::Forward(signal) => self.forward(signal),
                    Action::StopAll(cause) => {
                        stage.output.complain(match cause {
                            Cause::Lease => "the lease is running out, or was revoked; stopping the command",
                            Cause::Guardian => "the guardian does not answer; stopping the command",
                        });
                        self.tree.stop(self.guardian.pid);
                    }
                    Action::KillAll => events.push(self.kill_all(stage).await),
                    Action::Finish(finish) => return Some(finish),
                }
            }
        }
        None
    }

    /// Kills everything. The guardian goes first: then all that is left is below this process, and nobody
    /// starts anything.
    async fn kill_all(&mut self, stage: &Stage<'_>) -> Event {
        self.guardian.kill();
        let expected: BTreeSet<i32> = [self.guardian.pid].into_iter().chain(self.child_pid).collect();
        let stuck = |alive: &[i32]| {
            stage.output.complain(&format!(
                "processes {alive:?} were killed and do not die; the lease is kept for as long as it can be, and \
                 then only fences help"
            ));
        };
        let killed = self.tree.kill_all(&stage.inherited, &expected, self.child_pid, stuck).await;
        let ending = killed.ending.map(|ending| self.tree.ending(ending));
        Event::Empty { left_over: killed.left_over, ending }
    }

    fn receive(&mut self, stage: &Stage<'_>, message: FromGuardian) -> Event {
        match message {
            FromGuardian::Started { pid } => {
                // Only while its parent is the guardian is this surely the process that the guardian means.
                // If it is not, the child has ended, and that is the guardian's next word.
                let handle = Handle::open(pid).ok();
                let ours = proc::look_at(pid).is_some_and(|process| process.parent == self.guardian.pid);
                self.child = handle.filter(|_| ours);
                self.child_pid = Some(pid);
                if let Some(child) = &self.child {
                    self.unsent.drain(..).for_each(|signal| child.signal(signal));
                }
                Event::Look
            }
            FromGuardian::Failed { why } => {
                stage.output.complain(&format!("nothing could be started: {why}"));
                Event::ChildEnded(Some(Ending::Exited(100 + i32::from(Exit::Other as u8))))
            }
            FromGuardian::Confirmed(deadline) => Event::Confirmed(deadline.into()),
            FromGuardian::Ended(ended) => Event::ChildEnded(Some(ended.into())),
        }
    }

    /// What a signal to this process means for the tree.
    fn signal_received(&self, stage: &mut Stage<'_>, signal: i32) -> Option<Event> {
        if signal == TSTP {
            // A tree that stands still would wake up after its lease has become another's. So it does not.
            proc::descendants(self.guardian.pid, &BTreeSet::new())
                .iter()
                .for_each(|process| proc::signal(process.pid, Signal::CONT));
            return None;
        }
        if asks_to_end(signal) {
            stage.asked = Some(signal);
        }
        (!stage.shares_terminal || !FROM_TERMINAL.contains(&signal)).then_some(Event::Signal(signal))
    }

    fn forward(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        match &self.child {
            Some(child) => child.signal(signal),
            None => self.unsent.push(signal),
        }
    }
}

async fn dead(child: &Option<Handle>) {
    match child {
        Some(child) => child.dead().await,
        None => std::future::pending().await,
    }
}

async fn until(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// What the lease is now, and the time. The clock is read first, so a deadline computed of the two errs to
/// the early side.
fn read(lease: &Lease) -> (Hold, MachineMoment) {
    let now = SystemClock.machine_now();
    let status = lease.status();
    let left = lease.remaining();
    let hold = match (status.state, status.notice) {
        (LeaseState::Ended(_), _) => Hold::Ended,
        (_, Some(_)) => Hold::Noticed { left },
        (_, None) => Hold::Held { left },
    };
    (hold, now)
}

/// The lease's deadline, as other processes of this machine can read it.
fn deadline_of(lease: &Lease) -> MachineMoment {
    let now = SystemClock.machine_now();
    now.plus(lease.remaining())
}

/// Where a command finds the id of the session, if it gets it.
pub(super) const SESSION_VARIABLE: &str = "TENURE_SESSION";

/// What the command finds in its environment.
fn environment(plan: &Plan, held: &Held, endpoints: &Endpoints) -> Vec<(String, String)> {
    let mut environment = vec![
        ("TENURE_RESOURCE".to_owned(), plan.resource.to_string()),
        ("TENURE_TOKEN".to_owned(), held.permit.token().to_string()),
        ("TENURE_ENDPOINTS".to_owned(), endpoints.to_string()),
    ];
    if plan.pass_session {
        environment.push((SESSION_VARIABLE.to_owned(), held.session.id().to_string()));
    }
    if let Some(slot) = held.lease.scope().slot {
        environment.push(("TENURE_SLOT".to_owned(), slot.to_string()));
    }
    environment
}

/// Waits in the queue until the lease is ours and gives permits.
async fn acquire(client: &Client, plan: &Plan, timeout: Duration) -> Result<Held, CommandError> {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    loop {
        match try_acquire(client, plan, timeout).await {
            Ok(held) => return Ok(held),
            Err(error) if !plan.may_pass(&error) => return Err(error),
            Err(_) => backoff.wait().await,
        }
    }
}

async fn try_acquire(client: &Client, plan: &Plan, timeout: Duration) -> Result<Held, CommandError> {
    let session =
        client.session().holder(plan.holder.as_str()).ttl(plan.ttl).open_within(timeout).open().await;
    let session = session.map_err(|error| match error {
        OpenError::Call(error) => CommandError::Call(error),
        wrong => CommandError::said(Exit::Usage, wrong.to_string()),
    })?;
    let request = session.acquire(plan.resource.as_str()).policies(plan.policies).answer_within(timeout);
    let request = match plan.mode {
        Mode::Slots(slots) => request.slots(slots),
        _ => request,
    };
    let request = match plan.wait {
        None => request,
        Some(None) => request.wait(),
        Some(Some(length)) => request.wait_for(length),
    };
    let lease = request.await.map_err(|error| match error {
        AcquireError::Held(refused) => CommandError::Call(CallError::Refused(refused)),
        AcquireError::Call(error) => CommandError::Call(error),
        wrong => CommandError::said(Exit::Usage, wrong.to_string()),
    })?;
    let mut changes = lease.changes();
    loop {
        match lease.permit() {
            Ok(permit) => {
                if let Some(value) = &plan.value {
                    let registers = session.registers().guarded(&permit).ephemeral();
                    registers
                        .put(Leader::value_key(&plan.resource), value)
                        .await
                        .map_err(CommandError::Call)?;
                }
                return Ok(Held { session, lease, permit });
            }
            // In doubt, as after a pause: the next renewal tells.
            Err(_) if !matches!(lease.status().state, LeaseState::Ended(_)) => {
                if changes.next().await.is_none() {
                    return Err(CommandError::said(Exit::Lost, "the lease ended before it could be used"));
                }
            }
            Err(error) => {
                return Err(CommandError::said(Exit::Lost, format!("the lease cannot be used: {error}")));
            }
        }
    }
}

impl Plan {
    /// When the tree is asked to stop, and when it is killed. Between two renewals neither may be due, or a
    /// healthy lease would stop its own command.
    fn margins(&self) -> Result<Margins, CommandError> {
        let numbers = TimingNumbers::for_ttl(self.ttl);
        let usable = self.ttl.saturating_sub(numbers.sigma);
        // One more sigma than the deadline has already: killing and being seen dead take time, too.
        let hard = self.kill_before.unwrap_or(numbers.sigma).max(numbers.sigma);
        let soft = self.stop_before.unwrap_or(usable / 4).max(hard);
        let most = usable.saturating_sub(numbers.renew_every.mul_f64(1.5));
        if soft > most && (self.stop_before.is_some() || self.kill_before.is_some()) {
            let (soft, ttl, most) = (span(soft), span(self.ttl), span(most));
            return Err(CommandError::with_hint(
                Exit::Usage,
                format!("{soft} before the end of a TTL of {ttl} may come before the next renewal does"),
                format!("stop at most {most} before the end, or ask for a longer --ttl"),
            ));
        }
        Ok(Margins { soft, hard })
    }

    /// Whether what went wrong is worth waiting in the queue again.
    fn may_pass(&self, failure: &CommandError) -> bool {
        match failure {
            CommandError::Call(CallError::Refused(refused)) => match refused.code {
                // The session did not survive the queue, as in a long partition.
                Code::UnknownSession => self.wait == Some(None),
                Code::NoLeader | Code::Overloaded | Code::ShuttingDown | Code::UnknownOutcome => {
                    self.persistent
                }
                _ => false,
            },
            CommandError::Call(_) => self.persistent,
            CommandError::Said { exit: Exit::Lost, .. } => self.wait == Some(None),
            _ => false,
        }
    }
}

/// Runs the warm-up, if there is one. It holds nothing; whatever it leaves running dies with the tree.
async fn warm_up(plan: &Plan) -> Result<(), CommandError> {
    let Some(line) = &plan.warm_up else { return Ok(()) };
    let wrong = |why: String| {
        Err(CommandError::with_hint(
            Exit::Other,
            format!("the warm-up {why}"),
            "a candidate that is not ready does not lead: mend the warm-up",
        ))
    };
    let mut command = Command::new("sh");
    command.arg("-c").arg(line).env("TENURE_RESOURCE", plan.resource.as_str()).stdin(Stdio::null());
    let started = command.spawn().and_then(|child| {
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok((pid, Handle::open(pid)?))
    });
    let (pid, handle) = match started {
        Ok(started) => started,
        Err(error) => return wrong(format!("cannot be started: {error}")),
    };
    handle.dead().await;
    let status = Pid::from_raw(pid).and_then(|pid| waitpid(Some(pid), WaitOptions::NOHANG).ok().flatten());
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(code) => wrong(format!("ended with code {code}")),
        None => wrong("was killed".to_owned()),
    }
}
