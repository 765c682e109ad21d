//! The command stream: one task that carries every command of a client over one stream, and finds another when it
//! breaks.
//!
//! Commands are numbered by their sessions, so sending one twice does what sending it once does. Hence there is one
//! rule for every trouble: attach the sessions again, wherever there is a node, and send again whatever is
//! unanswered. Silence is trouble too: a node that answers nothing may be a leader without a quorum. What is not
//! numbered (a register written by nobody) is sent once, and if it stays unanswered that is said.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure_core::{Command, Done, SessionId, SessionNumber};
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::stream_client::StreamClient;
use tenure_wire::{ApiError, Code, Effect, proto};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{connect, failure, frames, unanswered};
use crate::dial::Dialer;
use crate::endpoints::{Endpoint, Endpoints};
use crate::error::{CallError, in_doubt, passes};
use crate::execution::{Execution, Work};
use crate::retry::Backoff;
use crate::store::{Ear, News, Then};

/// Delays between two attempts to connect, and before a refused command is sent again.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Messages that may wait to be written to the connection.
const MESSAGES_WAITING_MAX: usize = 16;
/// Frames in one message.
const FRAMES_PER_MESSAGE_MAX: usize = 512;
/// Server frames taken in before the server is told that there is room again.
const CREDITS_OWED_MAX: u32 = 256;
/// Passing refusals in a row after which another endpoint is tried.
const REFUSALS_IN_A_ROW_MAX: u32 = 3;
/// How long a node may leave everything unanswered that it was sent before another endpoint is tried. A leader that
/// has lost its quorum does so for as long as it is cut off: it refuses nothing, answers every ping, and its entries
/// never commit.
///
/// No command waits that long where all is well. Every frame is answered when its entry has been applied, an acquire
/// that has to wait too: "queued" is its answer, and the grant is a push. So this has to be longer than what a node
/// that will answer may need, which is an election (0.6 s and a few round trips) and a disk that is slow to sync, and
/// not much longer. To be wrong costs little: a command is done once however often it is sent. Only what has no
/// number and was sent is then told to its caller as unknown, which is the truth about it.
///
/// Pushes and pings do not count as answers: they say that somebody is there, not that commands come through.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Silence is counted in steps of this length, so that a process that was stopped has slept through one step and not
/// through all of them, and takes in what came meanwhile before it judges.
const SILENCE_STEP: Duration = Duration::from_millis(250);
/// How often the patience is doubled when no endpoint at all answers: all of them may be slow, and what is sent again
/// and again would make them slower.
const PATIENCE_DOUBLINGS_MAX: u32 = 3;

/// Where commands are handed in.
pub(super) struct Commands(mpsc::UnboundedSender<ToStream>);

enum ToStream {
    Submit(Command, Then<Done>),
    Listen(SessionId, Ear),
    Forget(SessionNumber),
}

impl Commands {
    pub fn start(endpoints: Endpoints, dialer: Dialer, execution: &Execution) -> Commands {
        // Unbounded, because every entry is one caller's that waits for it, and callers are bounded by the
        // application.
        let (sender, inbox) = mpsc::unbounded_channel();
        execution.spawn(Work::Calls, Driver::new(endpoints, dialer, inbox).run());
        Commands(sender)
    }

    pub fn submit(&self, command: Command, then: Then<Done>) {
        if let Err(mpsc::error::SendError(ToStream::Submit(_, then))) =
            self.0.send(ToStream::Submit(command, then))
        {
            then(Err(CallError::Unreachable { tried: Vec::new() }));
        }
    }

    pub fn listen(&self, session: SessionId, ear: Ear) {
        let _ = self.0.send(ToStream::Listen(session, ear));
    }

    pub fn forget(&self, session: SessionNumber) {
        let _ = self.0.send(ToStream::Forget(session));
    }
}

struct Driver {
    endpoints: Vec<Endpoint>,
    dialer: Dialer,
    /// The index of the endpoint in use.
    at: usize,
    inbox: mpsc::UnboundedReceiver<ToStream>,
    inbox_ended: bool,
    sessions: BTreeMap<SessionNumber, Member>,
    unanswered: BTreeMap<u64, Pending>,
    /// Frames to send, in order, as far as their sessions are attached.
    to_send: VecDeque<u64>,
    next_frame: u64,
    /// What the server has room for.
    window: u64,
    /// What the server has sent since it was last told of room.
    owed: u32,
    refusals: u32,
    /// Frames sent on this stream that have no answer yet.
    awaited: u64,
    /// Steps in a row at whose end something was awaited and nothing had been answered.
    silence: u32,
    /// Streams in a row that were left because they were silent.
    silent: u32,
    /// Frames and sessions that were refused for the moment.
    resting: Vec<u64>,
    backoff: Backoff,
    connected_before: bool,
}

struct Member {
    id: SessionId,
    ear: Ear,
    attached: Attached,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Attached {
    No,
    /// In this frame.
    Asked(u64),
    Yes,
    /// Refused for the moment.
    Resting,
}

struct Pending {
    command: Command,
    session: Option<SessionId>,
    then: Then<Done>,
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
    fn new(endpoints: Endpoints, dialer: Dialer, inbox: mpsc::UnboundedReceiver<ToStream>) -> Driver {
        Driver {
            endpoints: endpoints.as_slice().to_vec(),
            dialer,
            at: 0,
            inbox,
            inbox_ended: false,
            sessions: BTreeMap::new(),
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
        }
    }

    async fn run(mut self) {
        loop {
            while self.unanswered.is_empty() && self.sessions.is_empty() {
                match self.inbox.recv().await {
                    Some(heard) => self.hear(heard),
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
            self.at = (self.at + 1) % self.endpoints.len();
            self.backoff.wait().await;
        }
    }

    async fn connect(
        &mut self,
    ) -> Result<(mpsc::Sender<proto::ClientFrames>, Streaming<proto::ServerFrames>), CallError> {
        let endpoint = &self.endpoints[self.at];
        let channel = connect(endpoint, &self.dialer).await?;
        let (outbox, waiting) = mpsc::channel(MESSAGES_WAITING_MAX);
        let mut client = StreamClient::new(channel);
        let opening = client.commands(frames::outgoing(waiting));
        match tokio::time::timeout(self.patience(), opening).await {
            Ok(opened) => {
                let inbound = opened.map_err(|status| failure(endpoint, &status))?.into_inner();
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
        self.sessions.values_mut().for_each(|member| member.attached = Attached::No);
        let lost: Vec<u64> = self
            .unanswered
            .iter()
            .filter(|(_, pending)| pending.sent && !frames::is_repeatable(&pending.command))
            .map(|(frame, _)| *frame)
            .collect();
        for pending in lost.into_iter().filter_map(|frame| self.unanswered.remove(&frame)) {
            let tried = match error {
                CallError::Unanswered { tried, .. } | CallError::Unreachable { tried } => tried.clone(),
                CallError::Refused(_) => Vec::new(),
            };
            (pending.then)(Err(CallError::Unanswered { tried, effect: Effect::Unknown }));
        }
        for pending in self.unanswered.values_mut() {
            pending.doubtful |= std::mem::take(&mut pending.sent);
        }
        self.to_send = self.unanswered.keys().copied().collect();
    }

    async fn stream(
        &mut self,
        outbox: mpsc::Sender<proto::ClientFrames>,
        mut inbound: Streaming<proto::ServerFrames>,
    ) -> Left {
        if std::mem::replace(&mut self.connected_before, true) {
            // What was pushed meanwhile went elsewhere.
            self.sessions.values().for_each(|member| (member.ear)(News::Missed));
        }
        let endpoint = self.endpoints[self.at].clone();
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
                step = Some(Box::pin(tokio::time::sleep(SILENCE_STEP)));
            }
            tokio::select! {
                biased;
                told = inbound.message() => match told {
                    Ok(Some(told)) => if let Err(error) = self.take_in(told) {
                        return Left::Broken(error);
                    },
                    Ok(None) => return Left::Broken(unanswered(&endpoint, "the server ended the stream")),
                    Err(status) => return Left::Broken(failure(&endpoint, &status)),
                },
                room = outbox.reserve(), if full => if room.is_err() {
                    return Left::Broken(unanswered(&endpoint, "the stream is closed"));
                },
                heard = self.inbox.recv(), if !self.inbox_ended => match heard {
                    Some(heard) => self.hear(heard),
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
            while let Ok(heard) = self.inbox.try_recv() {
                self.hear(heard);
            }
        }
    }

    fn hear(&mut self, heard: ToStream) {
        match heard {
            ToStream::Submit(command, then) => {
                let session = frames::session_of(&command);
                if session.is_some_and(|id| !self.sessions.contains_key(&id.number)) {
                    return then(Err(unknown_session()));
                }
                let frame = self.next_frame();
                self.unanswered
                    .insert(frame, Pending { command, session, then, sent: false, doubtful: false });
                self.to_send.push_back(frame);
            }
            ToStream::Listen(id, ear) => {
                self.sessions.insert(id.number, Member { id, ear, attached: Attached::No });
            }
            ToStream::Forget(session) => {
                self.sessions.remove(&session);
                self.fail_session(session);
            }
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
        let unattached: Vec<SessionNumber> = self
            .sessions
            .iter()
            .filter(|(_, member)| member.attached == Attached::No)
            .map(|(number, _)| *number)
            .take(room)
            .collect();
        for number in unattached {
            let frame = self.next_frame();
            let member = self.sessions.get_mut(&number).expect("it was just found");
            member.attached = Attached::Asked(frame);
            let attach = proto::StreamAttach { secret: member.id.secret.as_bytes().to_vec() };
            message.frames.push(proto::ClientFrame {
                frame,
                session: number.get(),
                command: Some(Asked::Attach(attach)),
                ..Default::default()
            });
        }
        let mut held_back = VecDeque::new();
        while message.frames.len() < room
            && let Some(frame) = self.to_send.pop_front()
        {
            let Some(pending) = self.unanswered.get_mut(&frame) else { continue };
            let ready = pending.session.is_none_or(|id| {
                self.sessions.get(&id.number).is_some_and(|member| member.attached == Attached::Yes)
            });
            if !ready {
                held_back.push_back(frame);
                continue;
            }
            match frames::client_frame(frame, &pending.command) {
                Some(told) => {
                    pending.sent = true;
                    message.frames.push(told);
                }
                None => {
                    let pending = self.unanswered.remove(&frame).expect("it was just found");
                    let error =
                        ApiError::new(Code::NoSuchCall, "the session stream does not carry this command");
                    (pending.then)(Err(CallError::Refused(error)));
                }
            }
        }
        held_back.append(&mut self.to_send);
        self.to_send = held_back;
        self.window -= message.frames.len() as u64;
        self.awaited += message.frames.len() as u64;
        if self.owed >= CREDITS_OWED_MAX || (self.owed > 0 && !message.frames.is_empty()) {
            message.credits = std::mem::take(&mut self.owed);
        }
        (!message.frames.is_empty() || message.credits > 0).then_some(message)
    }

    fn take_in(&mut self, told: proto::ServerFrames) -> Result<(), CallError> {
        self.window += u64::from(told.credits);
        self.owed = self.owed.saturating_add(told.frames.len() as u32);
        for frame in told.frames {
            let session = SessionNumber::new(frame.session);
            match (frame.frame, frame.content) {
                (_, None) => {}
                (None, Some(Content::Welcome(_))) => self.silence = 0,
                (None, Some(Content::Missed(_))) => {
                    self.sessions.values().for_each(|member| (member.ear)(News::Missed));
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
        let Some(member) = self.sessions.get(&session) else { return };
        if let Some(news) = frames::news(push, member.id) {
            (member.ear)(news);
        }
        if closed {
            self.sessions.remove(&session);
            self.fail_session(session);
        }
    }

    fn answered(&mut self, frame: u64, session: SessionNumber, answer: Content) -> Result<(), CallError> {
        let asked =
            self.sessions.get_mut(&session).filter(|member| member.attached == Attached::Asked(frame));
        if let Some(member) = asked {
            match answer {
                Content::Error(error) => {
                    let error = ApiError::from(error);
                    if passes(&error) || error.code == Code::UnknownOutcome {
                        member.attached = Attached::Resting;
                        return self.refused_for_now(error);
                    }
                    let member = self.sessions.remove(&session).expect("it was just found");
                    (member.ear)(News::Closed { why: None });
                    self.fail_session(session);
                }
                _ => member.attached = Attached::Yes,
            }
            return Ok(());
        }
        let Some(pending) = self.unanswered.get(&frame) else { return Ok(()) };
        match frames::done(answer, pending.session) {
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
                let pending = self.unanswered.remove(&frame).expect("it was just found");
                let outcome = outcome.map_err(|error| pending.judge(error));
                (pending.then)(outcome);
                Ok(())
            }
        }
    }

    fn worth_repeating(&self, command: &Command, error: &ApiError) -> bool {
        error.code == Code::UnknownOutcome && frames::is_repeatable(command)
    }

    /// A node that says "not now" again and again may be cut off: another one may know better.
    fn refused_for_now(&mut self, error: ApiError) -> Result<(), CallError> {
        self.refusals += 1;
        if self.refusals >= REFUSALS_IN_A_ROW_MAX && self.endpoints.len() > 1 {
            return Err(CallError::Refused(error));
        }
        Ok(())
    }

    /// Whether the server is to say something: the answer to a frame, or that there is room for those that wait. It
    /// says the latter first of all, so a stream without any room is one that was not welcomed.
    fn is_owed_an_answer(&self) -> bool {
        self.awaited > 0 || self.window == 0
    }

    /// Takes in that a step has passed.
    fn is_silent_for_too_long(&mut self) -> bool {
        self.silence = if self.is_owed_an_answer() { self.silence + 1 } else { 0 };
        // The first step may have begun before anything was owed.
        SILENCE_STEP * self.silence > self.patience()
    }

    /// How long this endpoint may be silent. Every further round in which none of them answers has twice the patience.
    fn patience(&self) -> Duration {
        let rounds = self.silent / u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        ANSWER_WITHIN * (1 << rounds.min(PATIENCE_DOUBLINGS_MAX))
    }

    fn left_in_silence(&mut self) -> CallError {
        let why = format!("nothing was answered for {:?}", self.patience());
        self.silent = self.silent.saturating_add(1);
        unanswered(&self.endpoints[self.at], &why)
    }

    fn is_resting(&self) -> bool {
        !self.resting.is_empty() || self.sessions.values().any(|member| member.attached == Attached::Resting)
    }

    fn rested(&mut self) {
        for frame in std::mem::take(&mut self.resting) {
            if let Some(pending) = self.unanswered.get_mut(&frame) {
                pending.sent = false;
                self.to_send.push_back(frame);
            }
        }
        for member in self.sessions.values_mut().filter(|member| member.attached == Attached::Resting) {
            member.attached = Attached::No;
        }
    }

    /// The session is gone: so are its commands.
    fn fail_session(&mut self, session: SessionNumber) {
        let frames: Vec<u64> = self
            .unanswered
            .iter()
            .filter(|(_, pending)| pending.session.is_some_and(|id| id.number == session))
            .map(|(frame, _)| *frame)
            .collect();
        for mut pending in frames.into_iter().filter_map(|frame| self.unanswered.remove(&frame)) {
            pending.doubtful |= pending.sent;
            let error = pending.judge(tenure_core::Refusal::UnknownSession.into());
            (pending.then)(Err(error));
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
