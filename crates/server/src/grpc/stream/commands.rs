//! The command stream: frames in, answers and pushes out, many of both under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::{Answer, Command, Done, Event, EventKind, Refusal, Secret, SessionId, SessionNumber};
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::{self, ClientFrame, ClientFrames};
use tenure_wire::{ApiError, grpc, words};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::super::status;
use super::outbox::Outbox;
use crate::calls::failed;
use crate::connections::RequestGuard;
use crate::event_hub::{Subscriber, Subscriptions};
use crate::failure::Failure;
use crate::front::Api;

/// Commands that one stream may have unanswered.
const COMMANDS_UNDER_WAY_MAX: u32 = 4_096;
/// Events that may lie between the machine and this stream.
const EVENTS_WAITING_MAX: usize = 65_536;
/// Sessions attached to one stream.
const SESSIONS_MAX: usize = 100_000;

/// One command stream.
struct Commands {
    api: Arc<Api>,
    outbox: Outbox,
    /// What is attached to this stream, and the secrets that proved it.
    sessions: Subscriptions<Secret>,
    subscriber: Arc<Subscriber>,
    opened: mpsc::UnboundedSender<(u64, Result<Answer, Failure>)>,
    under_way: Arc<AtomicU32>,
}

/// Serves one stream until the client ends it, breaks its rules, or the node stops.
pub async fn serve(
    api: Arc<Api>,
    mut inbound: Streaming<ClientFrames>,
    outbox: Outbox,
    mark: Option<Arc<RequestGuard>>,
) {
    let (events_sender, mut events) = mpsc::channel(EVENTS_WAITING_MAX);
    let (opened, mut opens) = mpsc::unbounded_channel();
    let subscriber = Arc::new(Subscriber::new(events_sender));
    let mut stream = Commands {
        api: api.clone(),
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
        if let Some(mark) = &mark {
            mark.set_busy(stream.sessions.len() > 0);
        }
        tokio::select! {
            biased;
            () = api.stopping() => break Some(failed(Failure::Stopping)),
            // Some events are lost to this stream: it was too slow, or a snapshot took their place. Whoever opens
            // another and attaches is told how things stand.
            () = stream.subscriber.cut_off() => {
                break Some(ApiError::overloaded("this stream's events", Duration::ZERO));
            }
            Some(event) = events.recv() => {
                let mut batch = vec![event];
                while let Ok(event) = events.try_recv() {
                    batch.push(event);
                }
                stream.push(batch);
            }
            Ok(()) = members.changed() => {
                let endpoints = members.borrow_and_update().clone();
                stream.tell_members(endpoints);
            }
            Some((frame, answer)) = opens.recv() => stream.session_opened(frame, answer),
            message = inbound.message() => match message {
                Ok(Some(frames)) => if let Err(error) = stream.take_in(frames).await {
                    break Some(error);
                },
                // The client has nothing more to say; what is under way is still answered into the void.
                Ok(None) => break None,
                Err(status) => break Some(super::unreadable(&status)),
            },
        }
    };
    outbox.end(end.map(status));
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
        for frame in message.frames {
            if self.under_way.fetch_add(1, Ordering::AcqRel) >= COMMANDS_UNDER_WAY_MAX {
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
        let command = match grpc::frame_command(frame, attached, || self.api.node.draw_secret()) {
            Ok(Some(command)) => command,
            Ok(None) => return,
            Err(error) => return self.answer(number, session, Content::Error(error.into())),
        };
        if opens {
            // A session that this stream opened is attached to it, which only this task can do.
            let opened = self.opened.clone();
            self.api.node.submit_to(&command, Box::new(move |answer| drop(opened.send((number, answer)))));
        } else {
            let (outbox, under_way, own) =
                (self.outbox.clone(), self.under_way.clone(), self.subscriber.own.clone());
            let release = match &command {
                Command::Release { by, resource, .. } => Some((by.session.number, resource.clone())),
                _ => None,
            };
            release.iter().for_each(|release| own.begun(release.clone()));
            self.api.node.submit_to(
                &command,
                Box::new(move |answer| {
                    release.iter().for_each(|release| own.answered(release));
                    under_way.fetch_sub(1, Ordering::AcqRel);
                    outbox.answer(number, session, content(answer));
                }),
            );
        }
    }

    fn answer(&self, frame: u64, session: u64, content: Content) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
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
        self.sessions.add(&self.subscriber, id.number, id.secret);
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
        let mut own = self.api.node.glance(|machine| machine.own_session(&id));
        if own.is_none() {
            // This node may be behind: only a confirmed reading may say that a session is unknown.
            own = match self.api.node.read(|machine| machine.own_session(&id)).await {
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
        let (noticed, ended, incomplete) = grpc::renewal_event_parts(&own.events);
        Content::Attached(proto::Attached {
            ttl_ms: words::millis(own.view.ttl),
            holder: own.view.holder.to_string(),
            leases: own.leases.iter().map(grpc::grant_to_another).collect(),
            waiting: own.waiting,
            noticed,
            ended,
            incomplete,
            last_lease_revision: own.last_lease_revision.get(),
        })
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
            let leases = self.api.node.glance(|machine| machine.leases_of(&id)).unwrap_or_default();
            let grants = resources
                .iter()
                .filter_map(|name| leases.iter().find(|grant| Some(&grant.resource) == name.as_ref()));
            let grants = grants
                .map(|grant| grpc::grant_to_another(&tenure_core::Grant { waited, ..grant.clone() }))
                .collect();
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
