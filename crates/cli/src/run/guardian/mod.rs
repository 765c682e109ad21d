//! The guardian: a second process, so that no single death or stop leaves a tree without a process that kills
//! it in time.
//!
//! It starts the child, so the tree descends from it, and it from `run`: whichever of the two dies, the
//! kernel gives the orphans to the other one. `logic.rs` decides; this file watches and acts.

mod logic;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};
use tenure_client::proto::sessions_client::SessionsClient;
use tenure_client::{Call, Endpoints, Repeat, Transport};
use tenure_clock::SystemClock;
use tenure_core::{Caller, EndReason};
use tenure_wire::grpc;
use tokio::signal::unix::{SignalKind, signal};

use self::logic::{Action, Event, GuardianLogic};
use super::channel::{self, Channel, FromGuardian, Presented, ToGuardian};
use super::driver::SESSION_VARIABLE;
use super::logic::Ending;
use super::proc::{self, Handle};
use super::signals::Signals;
use super::tree::Tree;
use super::{CHILD, GUARDIAN, INIT, own_program};
use crate::args::TlsArgs;

/// The guardian looks at its clock at least this often: its timers stand still while the machine sleeps, its
/// clock does not.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long it tries to tell the store that everything is dead. After that the session ends by itself.
const TELL_WITHIN: Duration = Duration::from_secs(30);

/// A guardian, as its `run` sees it.
#[derive(Debug)]
pub struct Guardian {
    /// Its process.
    pub pid: i32,
    handle: Handle,
    channel: Channel,
}

impl Guardian {
    /// Starts a guardian for a tree that is to be started later. `shares_terminal` if the child is to stay in
    /// the terminal's foreground.
    pub fn spawn(tree: &Tree, shares_terminal: bool, command: &[OsString]) -> io::Result<Guardian> {
        let (ours, theirs) = Socket::pair()?;
        let mut program = own_program(GUARDIAN);
        program.args(tree.to_words()).arg(std::process::id().to_string());
        program.arg(if shares_terminal { "terminal" } else { "apart" }).args(command);
        program.stdin(Stdio::from(OwnedFd::from(theirs)));
        if !shares_terminal {
            program.process_group(0);
        }
        let child = program.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let handle = Handle::open(pid)?;
        channel::hand_over(&ours, io::stdin().as_fd())?;
        Ok(Guardian { pid, handle, channel: Channel::new(ours)? })
    }

    /// Says something.
    pub fn send(&self, message: &ToGuardian) {
        self.channel.send(message);
    }

    /// What it says next; `None` once it is dead and everything that it said was received.
    pub async fn next(&mut self) -> Option<FromGuardian> {
        tokio::select! {
            biased;
            Some(message) = self.channel.next() => Some(message),
            () = self.handle.dead() => None,
        }
    }

    /// Waits until it is dead.
    pub async fn dead(&self) {
        self.handle.dead().await;
    }

    /// Kills it.
    pub fn kill(&self) {
        self.handle.signal(Signal::KILL);
    }
}

/// The guardian's own process: does not return before there is nothing left to guard.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let (kind, path) = (arguments.next().ok_or_else(missing)?, arguments.next().ok_or_else(missing)?);
    let tree = Tree::from_words(&kind, &path).ok_or_else(missing)?;
    let run: i32 = arguments.next().and_then(|pid| pid.to_str()?.parse().ok()).ok_or_else(missing)?;
    let shares_terminal = arguments.next().ok_or_else(missing)? == "terminal";
    let command: Vec<OsString> = arguments.collect();
    set_child_subreaper(Some(getpid()))?;
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = channel::take_over(&socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let run_handle = Handle::open(run)?;
        if i64::from(parent_id()) != i64::from(run) {
            // It died before we could look at it, and its number may be another's.
            return Ok(());
        }
        let ward = Ward { shares_terminal, command, stdin: Some(stdin), child: None, reported: false };
        let channel = Channel::new(socket)?;
        Guarding { tree, run: run_handle, channel, ward, logic: GuardianLogic::default(), session: None }
            .guard()
            .await
    })
}

struct Guarding {
    tree: Tree,
    run: Handle,
    channel: Channel,
    ward: Ward,
    logic: GuardianLogic,
    /// The session, and where its end is to be reported.
    session: Option<(String, String, Option<Presented>, Box<TlsArgs>)>,
}

/// The child, before and after its start.
struct Ward {
    shares_terminal: bool,
    command: Vec<OsString>,
    stdin: Option<OwnedFd>,
    child: Option<i32>,
    reported: bool,
}

impl Guarding {
    async fn guard(mut self) -> io::Result<()> {
        // Caught and dropped: whoever speaks to the tree speaks to `run`, and a guardian goes last.
        let mut signals = Signals::catch()?;
        let mut deaths = signal(SignalKind::child())?;
        let mut run_gone = false;
        loop {
            let now = SystemClock.machine_now();
            let wait = self.logic.next_look(now).map_or(LOOK_EVERY, |wait| wait.min(LOOK_EVERY));
            let event = tokio::select! {
                biased;
                () = self.run.dead(), if !run_gone => {
                    run_gone = true;
                    Some(Event::RunDied)
                }
                message = self.channel.next(), if !run_gone => match message {
                    Some(message) => self.receive(message),
                    // A socket is closed by death alone; that death is awaited above.
                    None => {
                        self.run.dead().await;
                        run_gone = true;
                        Some(Event::RunDied)
                    }
                },
                _ = deaths.recv() => self.ward.ended(&self.tree).map(Event::ChildEnded),
                _ = signals.next() => None,
                () = tokio::time::sleep(wait) => Some(Event::Look),
            };
            let Some(event) = event else { continue };
            if self.carry_out(event).await {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, message: ToGuardian) -> Option<Event> {
        match message {
            ToGuardian::Deadline(deadline) => Some(Event::Deadline(deadline.into())),
            ToGuardian::Start { environment, deadline, kill_before, session, endpoints, credential, tls } => {
                self.logic.kill_before(kill_before);
                self.session = Some((session, endpoints, credential, tls));
                let deadline = tenure_clock::MachineMoment::from(deadline);
                // Whatever delayed this message: what cannot live long enough to be killed in time is not
                // started.
                if deadline.left_at(SystemClock.machine_now()) > kill_before {
                    match self.ward.start(&self.tree, environment) {
                        Ok(pid) => self.channel.send(&FromGuardian::Started { pid }),
                        Err(error) => self.channel.send(&FromGuardian::Failed { why: error.to_string() }),
                    }
                }
                Some(Event::Deadline(deadline))
            }
        }
    }

    /// Does what the event asks for; true when there is nothing left to guard.
    async fn carry_out(&mut self, event: Event) -> bool {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.logic.handle(event, SystemClock.machine_now()) {
                match action {
                    Action::Confirm(deadline) => self.channel.send(&FromGuardian::Confirmed(deadline.into())),
                    Action::Report(ending) => self.channel.send(&FromGuardian::Ended(ending.into())),
                    Action::KillAll => {
                        let nobody = BTreeSet::new();
                        self.tree.kill_all(&nobody, &nobody, None, |_| {}).await;
                        events.push(Event::Empty);
                    }
                    Action::EndSession => self.end_session().await,
                    Action::Exit => {
                        self.tree.remove();
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Proof of death: `run` is dead and so is everything that it had started.
    async fn end_session(&mut self) {
        let Some((session, endpoints, credential, tls)) = self.session.take() else { return };
        let (Ok(session), Ok(mut endpoints)) = (session.parse(), endpoints.parse::<Endpoints>()) else {
            return;
        };
        let credential = credential.and_then(Presented::credential);
        let by_credential = || credential.as_ref().map_or(Ok(None), |one| one.tls(tls.server_name.clone()));
        let Ok(secured) = tls.client().and_then(|tls| tls.map_or_else(by_credential, |tls| Ok(Some(tls))))
        else {
            return;
        };
        if let Some(tls) = secured {
            endpoints = endpoints.secured(tls);
        }
        if let Some(credential) = credential {
            endpoints = endpoints.with_credential(credential);
        }
        let request = grpc::close_request(&Caller::unnumbered(session), EndReason::Died);
        let call = Call {
            repeat: Repeat::Harmless,
            within: TELL_WITHIN,
            attempt_within: Some(Duration::from_secs(3)),
            persistent: true,
        };
        let send = |channel, _| {
            let request = request.clone();
            async move { SessionsClient::new(channel).close(request).await }
        };
        // If nobody can be notified, the session ends by itself.
        let _ = Transport::new(&endpoints).call(call, send).await;
    }
}

impl Ward {
    fn start(&mut self, tree: &Tree, environment: Vec<(String, String)>) -> io::Result<i32> {
        let mut command = own_program(if matches!(tree, Tree::Namespace) { INIT } else { CHILD });
        command.args(tree.to_words()).arg(getpid().as_raw_nonzero().to_string());
        command.arg(if self.shares_terminal { "terminal" } else { "apart" }).args(&self.command);
        // Not even that of somebody who happens to hold something here: whoever has an id can end the session.
        command.env_remove(SESSION_VARIABLE).envs(environment);
        let stdin = self.stdin.take().ok_or_else(|| io::Error::other("it was started before"))?;
        command.stdin(Stdio::from(stdin));
        if !self.shares_terminal {
            // Its own group: what the tree sends to its group is not for the guardian.
            command.process_group(0);
        }
        let pid = i32::try_from(tree.spawn(command)?.id()).map_err(io::Error::other)?;
        self.child = Some(pid);
        Ok(pid)
    }

    /// Somebody has died. If it was the child: how. It is left unreaped, so that `run` can still ask, should
    /// this process not live to tell.
    fn ended(&mut self, tree: &Tree) -> Option<Ending> {
        if self.reported {
            return None;
        }
        let child = self.child?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let seen = waitid(WaitId::Pid(Pid::from_raw(child)?), options).ok().flatten();
        let mut ending = seen.and_then(|status| match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Ending::Exited(code)),
            (None, signal) => signal.map(Ending::Signaled),
        });
        if ending.is_none() {
            // Orphans of the tree that have ended; and the child itself, if it ended just now.
            ending = proc::reap().dead.into_iter().find(|(pid, _)| *pid == child).map(|(_, ending)| ending);
        }
        self.reported = ending.is_some();
        ending.map(|ending| tree.ending(ending))
    }
}
