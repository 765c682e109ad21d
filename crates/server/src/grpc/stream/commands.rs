//! The command stream: frames in, answers and pushes out, many of both under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tenure_core::{
    Answer, Command, Done, Event, EventKind, Grant, Machine, Refusal, Secret, SessionId, SessionNumber,
};
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::{self, ClientFrame, ClientFrames};
use tenure_wire::{ApiError, grpc, words};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::outbox::Outbox;
use crate::answer_size::answer_bytes_max;
use crate::bounded::{Bounds, bounded};
use crate::calls::failed;
use crate::context::CallContext;
use crate::event_hub::{Subscriber, Subscriptions};
use crate::failure::Failure;
use crate::front::Api;
use crate::in_flight::InFlight;
use crate::secrets;

/// Commands that one stream may have unanswered.
const COMMANDS_UNDER_WAY_MAX: u32 = 4_096;
/// Bytes that their answers may have, by the longest that each can get: what one client may have a node keep for it. Only
/// writes that read many registers, or acquires of many resources, get there before the count does.
const ANSWER_BYTES_UNDER_WAY_MAX: usize = 64 << 20;
/// Events that may lie between the machine and this stream, by count and by bytes: many sessions may end at once.
const EVENTS_WAITING_MAX: Bounds = Bounds { count_max: 65_536, weight_max: 16 << 20 };
/// Sessions attached to one stream.
const SESSIONS_MAX: usize = 100_000;

/// One command stream.
struct Commands {
    api: Arc<Api>,
    context: CallContext,
    outbox: Outbox,
    /// What is attached to this stream, and the secrets that proved it, as the machine has stored them.
    sessions: Subscriptions<Secret>,
    subscriber: Arc<Subscriber>,
    opened: mpsc::UnboundedSender<(u64, Result<Answer, Failure>)>,
    under_way: Arc<CommandsUnderWay>,
    in_flight: Arc<InFlight>,
}

/// What one stream has unanswered.
#[derive(Default)]
struct CommandsUnderWay {
    commands: AtomicU32,
    /// Bytes that their answers may have.
    answer_bytes: AtomicUsize,
}

impl CommandsUnderWay {
    /// Whether one more command may begin, besides answers that the connection has not taken. They count: a client that
    /// sends without reading would pile up any number of them.
    fn begin(&self, unsent: u32) -> bool {
        self.commands.fetch_add(1, Ordering::AcqRel).saturating_add(unsent) < COMMANDS_UNDER_WAY_MAX
    }

    /// Whether an answer of so many bytes may still come; if so it counts until it is there.
    fn reserve(&self, bytes: usize) -> bool {
        let before = self.answer_bytes.fetch_add(bytes, Ordering::AcqRel);
        let fits = before == 0 || before + bytes <= ANSWER_BYTES_UNDER_WAY_MAX;
        if !fits {
            self.answer_bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
        fits
    }

    /// A command is answered whose answer may have had so many bytes.
    fn answered(&self, bytes: usize) {
        self.answer_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.commands.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves one stream until the client ends it, breaks its rules, or the node stops.
pub async fn serve(
    api: Arc<Api>,
    context: CallContext,
    mut inbound: Streaming<ClientFrames>,
    outbox: Outbox,
) {
    let (events_sender, mut events) = bounded(EVENTS_WAITING_MAX);
    let (opened, mut opens) = mpsc::unbounded_channel();
    let subscriber = Arc::new(Subscriber::new(events_sender));
    let mut stream = Commands {
        api: api.clone(),
        in_flight: context.stream(),
        context,
        outbox: outbox.clone(),
        sessions: Subscriptions::new(api.node.event_hub().clone(), &subscriber),
        subscriber,
        opened,
        under_way: Arc::default(),
    };
    let mut members = api.node.members();
    stream.welcome(members.borrow_and_update().clone());
    let end = loop {
        // A stream without a session is nobody's, and may make room for somebody's.
        if let Some(mark) = &stream.context.connection {
            mark.set_busy(stream.sessions.len() > 0);
        }
        // A client that does not take its answers is read no further until it does.
        let has_room = outbox.has_room();
        tokio::select! {
            biased;
            () = api.stopping() => break Some(failed(Failure::Stopping)),
            // Some events are lost to this stream: it was too slow, or a snapshot took their place. Whoever opens
            // another and attaches gets the current state.
            () = stream.subscriber.cut_off() => {
                break Some(ApiError::overloaded("this stream's events", Duration::ZERO));
            }
            Some(event) = events.recv() => {
                let mut batch = vec![event];
                while let Some(event) = events.try_recv() {
                    batch.push(event);
                }
                stream.push(batch);
            }
            Ok(()) = members.changed() => {
                let endpoints = members.borrow_and_update().clone();
                stream.tell_members(endpoints);
            }
            Some((frame, answer)) = opens.recv() => stream.session_opened(frame, answer),
            () = outbox.drained(), if !has_room => {}
            message = inbound.message(), if has_room => match message {
                Ok(Some(frames)) => if let Err(error) = stream.take_in(frames).await {
                    break Some(error);
                },
                // The client has nothing more to say; what is under way is still answered into the void.
                Ok(None) => break None,
                Err(status) => break Some(super::unreadable(&status)),
            },
        }
    };
    outbox.end(end);
}

impl Commands {
    fn welcome(&self, mut endpoints: Vec<String>) {
        if endpoints.is_empty() {
            // Nobody has been asked yet.
            endpoints.push(self.api.client_address.clone());
        }
        let status = self.api.node.status().replica;
        let (cluster, revision) =
            self.api.node.glance(|machine| (machine.settings().cluster, machine.revision()));
        let welcome = proto::Welcome {
            cluster: words::hex(&cluster),
            node: status.node,
            version: env!("CARGO_PKG_VERSION").into(),
            revision: revision.get(),
            endpoints,
        };
        self.outbox.push(0, Content::Welcome(welcome), revision);
        self.outbox.grant(COMMANDS_UNDER_WAY_MAX);
    }

    fn tell_members(&self, endpoints: Vec<String>) {
        let revision = self.api.node.glance(tenure_core::Machine::revision);
        self.outbox.push(0, Content::Members(proto::Members { endpoints }), revision);
    }

    async fn take_in(&mut self, message: ClientFrames) -> Result<(), ApiError> {
        self.outbox.room(message.credits);
        let unsent = self.outbox.answers_waiting();
        for frame in message.frames {
            if !self.under_way.begin(unsent) {
                return Err(ApiError::overloaded(
                    "the commands of this stream under way",
                    Duration::from_millis(100),
                ));
            }
            self.frame(frame).await;
        }
        Ok(())
    }

    async fn frame(&mut self, frame: ClientFrame) {
        let (number, session) = (frame.frame, frame.session);
        let attached = self.attached(SessionNumber::new(session));
        match &frame.command {
            Some(Asked::Attach(attach)) => {
                let content = match grpc::secret(&attach.secret) {
                    Ok(secret) => {
                        self.attach(SessionId { number: SessionNumber::new(session), secret }).await
                    }
                    Err(error) => Content::Error(error.into()),
                };
                return self.answer(number, session, content);
            }
            Some(Asked::Detach(_)) => {
                self.sessions.remove(SessionNumber::new(session));
                return self.answer(number, session, Content::Done(proto::Done {}));
            }
            _ => {}
        }
        let opens = matches!(frame.command, Some(Asked::Open(_)));
        let bytes = frame.encoded_len();
        let command = match grpc::frame_command(frame, attached, || self.api.node.draw_secret()) {
            Ok(Some(command)) => command,
            Ok(None) => return,
            Err(error) => return self.answer(number, session, Content::Error(error.into())),
        };
        let held = match self.in_flight.hold(bytes) {
            Ok(held) => held,
            Err(error) => return self.answer(number, session, Content::Error(error.into())),
        };
        let record = self.context.frame(&self.api.callers.audit, &command);
        if opens {
            // A session that this stream opened is attached to it, which only this task can do.
            let opened = self.opened.clone();
            let reply = Box::new(move |answer| {
                record.iter().for_each(|record| record.answered(&answer));
                drop(held);
                drop(opened.send((number, answer)));
            });
            let submission = self.api.node.submission(command);
            self.api.node.accept(&self.context.identity, submission, reply);
        } else {
            let answer_bytes = answer_bytes_max(&command);
            if !self.under_way.reserve(answer_bytes) {
                let error = ApiError::overloaded(
                    "the answers that this stream waits for",
                    Duration::from_millis(100),
                );
                return self.answer(number, session, Content::Error(error.into()));
            }
            let (outbox, under_way, own) =
                (self.outbox.clone(), self.under_way.clone(), self.subscriber.own.clone());
            let release = match &command {
                Command::Release { by, resource, .. } => Some((by.session.number, resource.clone())),
                _ => None,
            };
            release.iter().for_each(|release| own.begun(release.clone()));
            self.api.node.accept(
                &self.context.identity,
                self.api.node.submission(command),
                Box::new(move |answer| {
                    record.iter().for_each(|record| record.answered(&answer));
                    release.iter().for_each(|release| own.answered(release));
                    under_way.answered(answer_bytes);
                    drop(held);
                    outbox.answer(number, session, content(answer));
                }),
            );
        }
    }

    fn answer(&self, frame: u64, session: u64, content: Content) {
        self.under_way.answered(0);
        self.outbox.answer(frame, session, content);
    }

    fn session_opened(&mut self, frame: u64, answer: Result<Answer, Failure>) {
        let session = match &answer {
            Ok(Ok(Done::Opened { session, .. })) => {
                self.listen(*session);
                session.number.get()
            }
            _ => 0,
        };
        self.answer(frame, session, content(answer));
    }

    fn listen(&mut self, id: SessionId) {
        let stored = self.api.node.stored_id(id);
        self.sessions.add(&self.subscriber, stored.number, stored.secret);
    }

    fn attached(&self, number: SessionNumber) -> Option<SessionId> {
        self.sessions.kept(number).map(|secret| SessionId { number, secret: *secret })
    }

    async fn attach(&mut self, id: SessionId) -> Content {
        if self.sessions.len() >= SESSIONS_MAX {
            let error = ApiError::overloaded("the sessions of this stream", Duration::from_millis(100));
            return Content::Error(error.into());
        }
        // Listened to before it is looked at, so that nothing falls in between.
        self.listen(id);
        let identity = self.context.identity.clone();
        let look = |machine: &Machine| {
            let id = secrets::stored_id(id, machine);
            machine.own_session(&id).filter(|_| machine.knows_as(&identity, &id))
        };
        let mut own = self.api.node.glance(look);
        if own.is_none() {
            // This node may be behind: only a confirmed reading may say that a session is unknown.
            own = match self.api.node.read(look).await {
                Ok(own) => own,
                Err(failure) => {
                    self.sessions.remove(id.number);
                    return Content::Error(failed(failure).into());
                }
            };
        }
        let Some(own) = own else {
            self.sessions.remove(id.number);
            return Content::Error(ApiError::from(Refusal::UnknownSession).into());
        };
        Content::Attached(grpc::attached(&own))
    }

    /// Tells the client what has happened to its sessions. Grants of one acquire go together.
    fn push(&mut self, events: Vec<Event>) {
        let mut events = events.into_iter().peekable();
        while let Some(event) = events.next() {
            let EventKind::Granted { session, number, waited, .. } = event.kind else {
                self.push_one(event);
                continue;
            };
            let mut resources = vec![granted_resource(&event)];
            while let Some(next) = events.next_if(|next| {
                next.revision == event.revision
                    && matches!(next.kind, EventKind::Granted { session: s, number: n, .. } if s == session && n == number)
            }) {
                resources.push(granted_resource(&next));
            }
            let Some(id) = self.attached(session) else { continue };
            let grants: Vec<Grant> = self.api.node.glance(|machine| {
                let id = secrets::stored_id(id, machine);
                resources.iter().flatten().filter_map(|name| machine.lease_of(&id, name)).collect()
            });
            let grants = grants.into_iter().map(|grant| grpc::grant_to_another(&Grant { waited, ..grant }));
            let grants = grants.collect();
            let push = proto::PushGranted { number, grants, revision: event.revision.get() };
            self.outbox.push(session.get(), Content::PushGranted(push), event.revision);
        }
    }

    fn push_one(&mut self, event: Event) {
        let session = match &event.kind {
            EventKind::Closed { session, .. } => {
                self.sessions.remove(*session);
                *session
            }
            EventKind::Ended { session, .. }
            | EventKind::Noticed { session, .. }
            | EventKind::Unqueued { session, .. } => *session,
            _ => return,
        };
        if let Some(content) = grpc::push_content(&event.kind, event.revision) {
            self.outbox.push(session.get(), content, event.revision);
        }
    }
}

fn granted_resource(event: &Event) -> Option<tenure_core::ResourceName> {
    match &event.kind {
        EventKind::Granted { resource, .. } => Some(resource.clone()),
        _ => None,
    }
}

fn content(answer: Result<Answer, Failure>) -> Content {
    match answer {
        Ok(answer) => grpc::answer_content(&answer),
        Err(failure) => Content::Error(failed(failure).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_nobody_reads_count_as_under_way() {
        let under_way = CommandsUnderWay::default();
        assert!(under_way.begin(COMMANDS_UNDER_WAY_MAX - 1));
        under_way.answered(0);
        assert!(!under_way.begin(COMMANDS_UNDER_WAY_MAX));
    }

    #[test]
    fn answers_are_reserved_within_their_bytes_and_one_always_fits() {
        let under_way = CommandsUnderWay::default();
        under_way.commands.store(2, Ordering::Release);
        assert!(under_way.reserve(2 * ANSWER_BYTES_UNDER_WAY_MAX), "it is the only one");
        assert!(!under_way.reserve(1));
        under_way.answered(2 * ANSWER_BYTES_UNDER_WAY_MAX);
        assert!(under_way.reserve(ANSWER_BYTES_UNDER_WAY_MAX - 1) && under_way.reserve(1));
        assert!(!under_way.reserve(1), "what was refused before reserves nothing");
        under_way.answered(1);
        assert_eq!(under_way.commands.load(Ordering::Acquire), 0);
    }
}
