//! The command stream: one task that sends every command of a client over one stream, and opens another when
//! it breaks.
//!
//! Commands are numbered by their sessions, so sending one twice has the effect of sending it once. Hence one
//! rule for every failure: attach the sessions again, on any node, and send every unanswered command again.
//! Silence is a failure too: a node that answers nothing may be a leader without a quorum. A command without
//! a number (a register write without a session) is sent once; if it stays unanswered, its outcome is
//! reported as unknown.

mod sessions;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure_core::{Command, Done, SessionId, SessionNumber};
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::stream_client::StreamClient;
use tenure_wire::{ApiError, Code, Effect, grpc, proto};
use tokio::sync::mpsc;
use tonic::Streaming;

use self::sessions::Sessions;
use super::endpoint_errors::{EndpointErrors, reason};
use super::patience::Patience;
use super::{CONNECT_WITHIN, connect, failure, follow, frames, unanswered};
use crate::dial::Dialer;
use crate::endpoints::Endpoint;
use crate::error::{CallError, in_doubt, passes};
use crate::execution::{Execution, Work};
use crate::members::Directory;
use crate::retry::Backoff;
use crate::store::{Callback, SessionEvent, SessionListener};

/// Delays between two attempts to connect, and before a refused command is sent again.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Messages that may wait to be written to the connection.
const MESSAGES_WAITING_MAX: usize = 16;
/// Frames in one message.
const FRAMES_PER_MESSAGE_MAX: usize = 512;
/// Server frames taken in before the server is granted new credit.
const CREDITS_OWED_MAX: u32 = 256;
/// Passing refusals in a row after which another endpoint is tried.
const REFUSALS_IN_A_ROW_MAX: u32 = 3;
// How long a node may leave everything unanswered that it was sent before another endpoint is tried is in
// `patience.rs`. A leader that has lost its quorum does so for as long as it is cut off: it refuses nothing,
// answers every ping, and its entries never commit.
//
// No command waits that long where all is well. Every frame is answered when its entry has been applied, an
// acquire that has to wait too: "queued" is its answer, and the grant is a push. To be wrong costs little: a
// command is done once however often it is sent. Only what has no number and was sent is then told to its
// caller as unknown, which is the truth about it.
//
// Pushes and pings do not count as answers: they say that somebody is there, not that commands come through.

/// Where commands are handed in.
pub(super) struct Commands(mpsc::UnboundedSender<ToStream>);

enum ToStream {
    Submit(Command, Callback<Done>),
    /// How soon the session wants silence noticed.
    Detect(SessionNumber, Duration),
    Listen(SessionId, SessionListener),
    Forget(SessionNumber),
}

impl Commands {
    pub fn start(
        directory: Directory,
        dialer: Dialer,
        endpoint_errors: EndpointErrors,
        execution: &Execution,
    ) -> Commands {
        // Unbounded, because every entry is one caller's that waits for it, and callers are bounded by the
        // application.
        let (sender, inbox) = mpsc::unbounded_channel();
        let driver = Driver::new(directory, dialer, endpoint_errors, execution.clone(), inbox);
        execution.spawn(Work::Calls, driver.run());
        Commands(sender)
    }

    pub fn submit(&self, command: Command, callback: Callback<Done>) {
        if let Err(mpsc::error::SendError(ToStream::Submit(_, callback))) =
            self.0.send(ToStream::Submit(command, callback))
        {
            callback(Err(CallError::Unreachable { tried: Vec::new() }));
        }
    }

    pub fn detect_within(&self, session: SessionNumber, detect: Duration) {
        let _ = self.0.send(ToStream::Detect(session, detect));
    }

    pub fn listen(&self, session: SessionId, listener: SessionListener) {
        let _ = self.0.send(ToStream::Listen(session, listener));
    }

    pub fn forget(&self, session: SessionNumber) {
        let _ = self.0.send(ToStream::Forget(session));
    }
}

struct Driver {
    directory: Directory,
    dialer: Dialer,
    endpoint_errors: EndpointErrors,
    execution: Execution,
    /// The endpoint in use.
    endpoint: Endpoint,
    /// Streams in a row on which nothing was answered for good.
    failures: usize,
    inbox: mpsc::UnboundedReceiver<ToStream>,
    inbox_ended: bool,
    sessions: Sessions,
    patience: Patience,
    unanswered: BTreeMap<u64, Pending>,
    /// Frames that can be sent, in order.
    to_send: VecDeque<u64>,
    next_frame: u64,
    /// What the server has room for.
    window: u64,
    /// What the server has sent since it was last granted credit.
    owed: u32,
    refusals: u32,
    /// Frames sent on this stream that have no answer yet.
    awaited: u64,
    /// Steps in a row at whose end something was awaited and nothing had been answered.
    silence: u32,
    /// Streams in a row that were left because they were silent.
    silent: u32,
    /// Frames that were refused for the moment.
    resting: Vec<u64>,
    backoff: Backoff,
    connected_before: bool,
    /// Whether the endpoint in use is known to be in trouble.
    in_trouble: bool,
    /// The cluster that was last connected to, as it calls itself.
    cluster: String,
}

struct Pending {
    command: Command,
    session: Option<SessionId>,
    callback: Callback<Done>,
    /// On the present stream.
    sent: bool,
    /// An earlier transmission was not answered, or not with its outcome: it may have been applied.
    doubtful: bool,
}

impl Pending {
    fn judge(&self, error: ApiError) -> CallError {
        CallError::Refused(if self.doubtful { in_doubt(error) } else { error })
    }
}

/// Why a stream is left.
enum Left {
    /// Nobody needs it any more.
    Done,
    /// It broke, or should be tried elsewhere.
    Broken(CallError),
}

impl Driver {
    fn new(
        directory: Directory,
        dialer: Dialer,
        endpoint_errors: EndpointErrors,
        execution: Execution,
        inbox: mpsc::UnboundedReceiver<ToStream>,
    ) -> Driver {
        Driver {
            endpoint: directory.first(),
            directory,
            dialer,
            endpoint_errors,
            execution,
            failures: 0,
            inbox,
            inbox_ended: false,
            sessions: Sessions::default(),
            patience: Patience::default(),
            unanswered: BTreeMap::new(),
            to_send: VecDeque::new(),
            next_frame: 1,
            window: 0,
            owed: 0,
            refusals: 0,
            awaited: 0,
            silence: 0,
            silent: 0,
            resting: Vec::new(),
            backoff: Backoff::new(BACKOFF_FIRST, BACKOFF_MAX),
            connected_before: false,
            in_trouble: false,
            cluster: String::new(),
        }
    }

    async fn run(mut self) {
        loop {
            while self.unanswered.is_empty() && self.sessions.is_empty() {
                match self.inbox.recv().await {
                    Some(received) => self.receive(received),
                    None => return,
                }
            }
            let error = match self.connect().await {
                Ok((outbox, inbound)) => match self.stream(outbox, inbound).await {
                    Left::Done => return,
                    Left::Broken(error) => error,
                },
                Err(error) => error,
            };
            self.broke(&error);
            self.failures += 1;
            self.endpoint = self.directory.lock().after(&self.endpoint, self.failures);
            self.backoff.wait().await;
        }
    }

    async fn connect(
        &mut self,
    ) -> Result<(mpsc::Sender<proto::ClientFrames>, Streaming<proto::ServerFrames>), CallError> {
        let endpoint = self.endpoint.clone();
        self.in_trouble = true;
        self.endpoint_errors.note(&endpoint, "no connection yet");
        let channel = connect(&endpoint, &self.dialer, self.connect_wait()).await?;
        self.endpoint_errors.note(&endpoint, "connected, and nothing was answered yet");
        let (outbox, waiting) = mpsc::channel(MESSAGES_WAITING_MAX);
        let mut client = StreamClient::new(channel);
        let opening = client.commands(frames::outgoing(waiting));
        match tokio::time::timeout(self.wait(), opening).await {
            Ok(opened) => {
                let inbound = opened.map_err(|status| failure(&endpoint, &status))?.into_inner();
                Ok((outbox, inbound))
            }
            Err(_) => Err(self.left_in_silence()),
        }
    }

    /// Everything starts over on the next stream.
    fn broke(&mut self, error: &CallError) {
        self.window = 0;
        self.owed = 0;
        self.refusals = 0;
        self.awaited = 0;
        self.silence = 0;
        self.resting.clear();
        self.sessions.start_over();
        let why = reason(error);
        let lost: Vec<u64> = self
            .unanswered
            .iter()
            .filter(|(_, pending)| pending.sent && !frames::is_repeatable(&pending.command))
            .map(|(frame, _)| *frame)
            .collect();
        for frame in lost {
            if let Some(pending) = self.take(frame) {
                (pending.callback)(Err(unanswered(&self.endpoint, &why)));
            }
        }
        self.endpoint_errors.note(&self.endpoint, why);
        for pending in self.unanswered.values_mut() {
            pending.doubtful |= std::mem::take(&mut pending.sent);
        }
        self.to_send.clear();
        let frames: Vec<u64> = self.unanswered.keys().copied().collect();
        frames.into_iter().for_each(|frame| self.enqueue(frame));
    }

    /// Puts a command where it can be sent from: at once, or when its session is attached.
    fn enqueue(&mut self, frame: u64) {
        let Some(pending) = self.unanswered.get(&frame) else { return };
        if pending.session.is_none_or(|id| self.sessions.may_send(id.number, frame)) {
            self.to_send.push_back(frame);
        }
    }

    /// Takes a command out that is answered for good.
    fn take(&mut self, frame: u64) -> Option<Pending> {
        let pending = self.unanswered.remove(&frame)?;
        if let Some(id) = pending.session {
            self.sessions.answered(id.number, frame);
        }
        Some(pending)
    }

    async fn stream(
        &mut self,
        outbox: mpsc::Sender<proto::ClientFrames>,
        mut inbound: Streaming<proto::ServerFrames>,
    ) -> Left {
        if std::mem::replace(&mut self.connected_before, true) {
            // What was pushed meanwhile went elsewhere.
            self.sessions.all().for_each(|member| (member.listener)(SessionEvent::Missed));
        }
        let endpoint = self.endpoint.clone();
        let mut rest = None;
        let mut step = None;
        loop {
            if rest.is_none() && self.is_resting() {
                let delay = self.backoff.next_delay(crate::retry::roll());
                rest = Some(Box::pin(tokio::time::sleep(delay)));
            }
            if self.inbox_ended && self.unanswered.is_empty() {
                return Left::Done;
            }
            while let Ok(room) = outbox.try_reserve() {
                let Some(message) = self.next_message() else { break };
                room.send(message);
            }
            let full = outbox.capacity() == 0;
            if step.is_none() && self.is_owed_an_answer() {
                step = Some(Box::pin(tokio::time::sleep(self.patience.step())));
            }
            tokio::select! {
                biased;
                frames = inbound.message() => match frames {
                    Ok(Some(frames)) => if let Err(error) = self.take_in(frames) {
                        return Left::Broken(error);
                    },
                    Ok(None) => return Left::Broken(unanswered(&endpoint, "the server ended the stream")),
                    Err(status) => return Left::Broken(failure(&endpoint, &status)),
                },
                room = outbox.reserve(), if full => if room.is_err() {
                    return Left::Broken(unanswered(&endpoint, "the stream is closed"));
                },
                received = self.inbox.recv(), if !self.inbox_ended => match received {
                    Some(received) => self.receive(received),
                    None => self.inbox_ended = true,
                },
                () = over(&mut rest) => {
                    rest = None;
                    self.rested();
                }
                () = over(&mut step) => {
                    step = None;
                    if self.is_silent_for_too_long() {
                        return Left::Broken(self.left_in_silence());
                    }
                }
            }
            // All that has come goes out together.
            while let Ok(received) = self.inbox.try_recv() {
                self.receive(received);
            }
        }
    }

    fn receive(&mut self, received: ToStream) {
        match received {
            ToStream::Submit(command, callback) => {
                let session = grpc::session_of(&command);
                if session.is_some_and(|id| !self.sessions.contains(id.number)) {
                    return callback(Err(unknown_session()));
                }
                let frame = self.next_frame();
                self.unanswered
                    .insert(frame, Pending { command, session, callback, sent: false, doubtful: false });
                self.enqueue(frame);
            }
            ToStream::Detect(session, detect) => self.patience.keep(session, detect),
            ToStream::Listen(id, listener) => self.sessions.add(id, listener),
            ToStream::Forget(session) => self.end_session(session, None),
        }
    }

    fn next_frame(&mut self) -> u64 {
        let frame = self.next_frame;
        self.next_frame += 1;
        frame
    }

    /// The next message to send, if there is anything to say and room for it.
    fn next_message(&mut self) -> Option<proto::ClientFrames> {
        let mut message = proto::ClientFrames::default();
        let room = (self.window as usize).min(FRAMES_PER_MESSAGE_MAX);
        while message.frames.len() < room
            && let Some(session) = self.sessions.next_to_attach()
        {
            let frame = self.next_frame();
            let Some(id) = self.sessions.asked(session, frame) else { continue };
            message.frames.push(grpc::attach_frame(frame, id));
        }
        while message.frames.len() < room
            && let Some(frame) = self.to_send.pop_front()
        {
            let Some(pending) = self.unanswered.get_mut(&frame) else { continue };
            match grpc::client_frame(frame, &pending.command) {
                Some(frames) => {
                    pending.sent = true;
                    message.frames.push(frames);
                }
                None => {
                    let error =
                        ApiError::new(Code::NoSuchCall, "the session stream does not carry this command");
                    if let Some(pending) = self.take(frame) {
                        (pending.callback)(Err(CallError::Refused(error)));
                    }
                }
            }
        }
        self.window -= message.frames.len() as u64;
        self.awaited += message.frames.len() as u64;
        if self.owed >= CREDITS_OWED_MAX || (self.owed > 0 && !message.frames.is_empty()) {
            message.credits = std::mem::take(&mut self.owed);
        }
        (!message.frames.is_empty() || message.credits > 0).then_some(message)
    }

    fn take_in(&mut self, frames: proto::ServerFrames) -> Result<(), CallError> {
        self.window += u64::from(frames.credits);
        self.owed = self.owed.saturating_add(frames.frames.len() as u32);
        for frame in frames.frames {
            let session = SessionNumber::new(frame.session);
            match (frame.frame, frame.content) {
                (_, None) => {}
                (None, Some(Content::Welcome(welcome))) => {
                    self.silence = 0;
                    self.directory.lock().answered(&self.endpoint, welcome.node);
                    self.follow(&welcome.endpoints, welcome.cluster.clone());
                    self.cluster = welcome.cluster;
                }
                (None, Some(Content::Members(members))) => {
                    self.follow(&members.endpoints, self.cluster.clone());
                }
                (None, Some(Content::Missed(_))) => {
                    self.sessions.all().for_each(|member| (member.listener)(SessionEvent::Missed));
                }
                (None, Some(push)) => self.pushed(session, push),
                (Some(frame), Some(answer)) => {
                    self.awaited = self.awaited.saturating_sub(1);
                    self.silence = 0;
                    self.answered(frame, session, answer)?;
                }
            }
        }
        Ok(())
    }

    fn pushed(&mut self, session: SessionNumber, push: Content) {
        let closed = matches!(push, Content::PushClosed(_));
        let Some(member) = self.sessions.get(session) else { return };
        if let Some(event) = frames::session_event(push, member.id) {
            (member.listener)(event);
        }
        if closed {
            self.end_session(session, None);
        }
    }

    /// The nodes have named the members of the cluster. Those that are new are tried out, each in a task of
    /// its own.
    fn follow(&mut self, addresses: &[String], cluster: String) {
        let new = self.directory.lock().advertise(addresses);
        for endpoint in new {
            let (directory, dialer) = (self.directory.downgrade(), self.dialer.clone());
            self.execution.spawn(Work::Calls, follow::try_out(endpoint, directory, dialer, cluster.clone()));
        }
    }

    fn answered(&mut self, frame: u64, session: SessionNumber, answer: Content) -> Result<(), CallError> {
        if self.sessions.is_asked(session, frame) {
            match answer {
                Content::Error(error) => {
                    let error = ApiError::from(error);
                    if passes(&error) || error.code == Code::UnknownOutcome {
                        self.sessions.rests(session);
                        return self.refused_for_now(error);
                    }
                    self.end_session(session, Some(SessionEvent::Closed { why: None }));
                }
                _ => {
                    self.came_through();
                    self.to_send.append(&mut self.sessions.attached(session));
                }
            }
            return Ok(());
        }
        let Some(pending) = self.unanswered.get(&frame) else { return Ok(()) };
        match grpc::read_done(answer, pending.session) {
            Err(error) if passes(&error) || self.worth_repeating(&pending.command, &error) => {
                if error.effect == Effect::Unknown
                    && let Some(pending) = self.unanswered.get_mut(&frame)
                {
                    pending.doubtful = true;
                }
                self.resting.push(frame);
                self.refused_for_now(error)
            }
            outcome => {
                self.refusals = 0;
                self.silent = 0;
                self.backoff.reset();
                self.came_through();
                if let Some(pending) = self.take(frame) {
                    let outcome = outcome.map_err(|error| pending.judge(error));
                    (pending.callback)(outcome);
                }
                Ok(())
            }
        }
    }

    /// The endpoint in use has answered.
    fn came_through(&mut self) {
        self.failures = 0;
        if std::mem::take(&mut self.in_trouble) {
            self.endpoint_errors.clear(&self.endpoint);
        }
    }

    fn worth_repeating(&self, command: &Command, error: &ApiError) -> bool {
        error.code == Code::UnknownOutcome && frames::is_repeatable(command)
    }

    /// A node that says "not now" again and again may be cut off: another one may know better.
    fn refused_for_now(&mut self, error: ApiError) -> Result<(), CallError> {
        self.refusals += 1;
        if self.refusals >= REFUSALS_IN_A_ROW_MAX && self.directory.all().len() > 1 {
            return Err(CallError::Refused(error));
        }
        Ok(())
    }

    /// Whether the server is to say something: the answer to a frame, or that there is room for those that
    /// wait. It says the latter first of all, so a stream without any room is one that was not welcomed.
    fn is_owed_an_answer(&self) -> bool {
        self.awaited > 0 || self.window == 0
    }

    /// Takes in that a step has passed.
    fn is_silent_for_too_long(&mut self) -> bool {
        self.silence = if self.is_owed_an_answer() { self.silence + 1 } else { 0 };
        // The first step may have begun before anything was owed.
        let silent_for = self.patience.step() * self.silence.saturating_sub(1);
        if !silent_for.is_zero() && !self.in_trouble {
            self.in_trouble = true;
            self.endpoint_errors.note(&self.endpoint, "connected, and does not answer");
        }
        self.patience.step() * self.silence > self.wait()
    }

    /// How long this endpoint may take to accept a connection: longer with every round in which none of them
    /// came through.
    fn connect_wait(&self) -> Duration {
        let rounds = self.failures / self.directory.all().len().max(1);
        self.patience.wait(u32::try_from(rounds).unwrap_or(u32::MAX)).min(CONNECT_WITHIN)
    }

    /// How long this endpoint may be silent. Every further round in which none of them answers has twice the
    /// patience.
    fn wait(&self) -> Duration {
        let endpoints = u32::try_from(self.directory.all().len()).unwrap_or(u32::MAX);
        self.patience.wait(self.silent / endpoints.max(1))
    }

    fn left_in_silence(&mut self) -> CallError {
        let why = format!("nothing was answered for {:?}", self.wait());
        self.silent = self.silent.saturating_add(1);
        unanswered(&self.endpoint, &why)
    }

    fn is_resting(&self) -> bool {
        !self.resting.is_empty() || self.sessions.is_any_resting()
    }

    fn rested(&mut self) {
        for frame in std::mem::take(&mut self.resting) {
            if let Some(pending) = self.unanswered.get_mut(&frame) {
                pending.sent = false;
                self.enqueue(frame);
            }
        }
        self.sessions.rested();
    }

    /// The session is gone: so are its commands.
    fn end_session(&mut self, session: SessionNumber, event: Option<SessionEvent>) {
        self.patience.forget(session);
        let Some(member) = self.sessions.remove(session) else { return };
        if let Some(event) = event {
            (member.listener)(event);
        }
        for mut pending in member.unanswered.into_iter().filter_map(|frame| self.unanswered.remove(&frame)) {
            pending.doubtful |= pending.sent;
            let error = pending.judge(tenure_core::Refusal::UnknownSession.into());
            (pending.callback)(Err(error));
        }
    }
}

/// Ends when the rest does, if there is one.
async fn over(rest: &mut Option<std::pin::Pin<Box<tokio::time::Sleep>>>) {
    match rest {
        Some(rest) => rest.await,
        None => std::future::pending().await,
    }
}

fn unknown_session() -> CallError {
    CallError::Refused(tenure_core::Refusal::UnknownSession.into())
}

#[cfg(test)]
mod tests;
