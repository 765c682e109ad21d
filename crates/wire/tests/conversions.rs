//! A value that is sent and read again is the same value: commands to the server, answers and views back, over the
//! session stream and over single calls. And whoever shows a message as JSON shows what HTTP would have answered.
//!
//! Messages have whole milliseconds, so values are rounded to them before they are compared.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use tenure_core::*;
use tenure_wire::grpc::{self, Push};
use tenure_wire::words::millis;
use tenure_wire::{json, proto};

#[allow(dead_code, reason = "each test file uses its own part of this")]
mod samples;
mod values;

fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(millis(duration))
}

/// What a request can say of an acquire: whole milliseconds, a wait of at least one, no id of a transmission, and a
/// secret that is the server's.
fn rounded_acquire(mut acquire: Acquire) -> Acquire {
    if let AcquireBy::Opening(open) = &mut acquire.by {
        open.ttl = rounded(open.ttl);
        open.secret = SECRET;
    }
    if let Wait::For(length) = &mut acquire.wait {
        *length = rounded(*length).max(Duration::from_millis(1));
    }
    let policies = &mut acquire.policies;
    for length in [&mut policies.lock_delay, &mut policies.max_hold, &mut policies.hard_limit] {
        *length = length.map(rounded);
    }
    Acquire { transmission: None, ..acquire }
}

fn rounded_command(command: Command) -> Command {
    match command {
        Command::Acquire(acquire) => Command::Acquire(Box::new(rounded_acquire(*acquire))),
        Command::Close { by, why } => {
            // Who closes a session can only say whether its processes died.
            Command::Close { by, why: if why == EndReason::Died { why } else { EndReason::Released } }
        }
        Command::Release { by, resource, token, rest } => {
            Command::Release { by, resource, token, rest: rest.map(rounded) }
        }
        Command::Paused { session, length } => Command::Paused { session, length: rounded(length) },
        other => other,
    }
}

const SECRET: Secret = Secret::new([7; 16]);

fn rounded_grant(grant: Grant, session: SessionId) -> Grant {
    Grant {
        session,
        remaining: rounded(grant.remaining),
        ttl: rounded(grant.ttl),
        waited: rounded(grant.waited),
        ..grant
    }
}

/// What the stream can say of an answer. It answers only the commands that it carries.
fn rounded_done(done: Done, session: SessionId) -> Option<Done> {
    Some(match done {
        Done::Opened { .. } => return None,
        Done::Granted { grants, opened: _ } => Done::Granted {
            grants: grants.into_iter().map(|grant| rounded_grant(grant, session)).collect(),
            opened: None,
        },
        Done::Queued { ahead, .. } => Done::Queued { session, ttl: Duration::ZERO, ahead },
        Done::Transferred(grant) => Done::Transferred(Box::new(rounded_grant(*grant, session))),
        Done::Revoked { .. } | Done::BarrierTaken { .. } | Done::Restored { .. } => Done::Nothing,
        other => other,
    })
}

fn rounded_holding(holding: Holding) -> Holding {
    Holding {
        remaining: rounded(holding.remaining),
        ttl: rounded(holding.ttl),
        held_for: rounded(holding.held_for),
        ..holding
    }
}

fn waiter() -> impl Strategy<Value = WaiterView> {
    let first = (values::session(), values::holder(), values::mode(), any::<i32>());
    (first, values::duration(), of(values::duration()), vec(values::resource(), 2..4)).prop_map(
        |((session, holder, mode, priority), waited, remaining, resources)| WaiterView {
            session,
            holder,
            mode,
            priority,
            waited: rounded(waited),
            remaining: remaining.map(rounded),
            resources,
            identity: Some("cred/a".parse().unwrap()),
        },
    )
}

fn fence() -> impl Strategy<Value = FenceView> {
    let armed = (of(values::slot()), values::token(), any::<bool>())
        .prop_map(|(slot, token, current)| ArmedView { slot, token, current });
    (values::resource(), values::fence(), vec(armed, 0..3), values::number(), of(values::wall())).prop_map(
        |(resource, fence, armed, refused, refused_wall)| FenceView {
            resource,
            fence,
            armed,
            refused,
            refused_wall,
        },
    )
}

fn lease() -> impl Strategy<Value = LeaseView> {
    let first = (values::resource(), values::kind(), vec(values::holding(), 0..3), of(values::token()));
    let second = (values::generation(), vec(waiter(), 0..3), 0..9usize, of(values::duration()));
    (first, second, vec(fence(), 0..3)).prop_map(
        |((resource, kind, holders, token), (generation, waiters, more_waiters, delayed), fences)| {
            LeaseView {
                kind: Some(kind),
                holders: holders.into_iter().map(rounded_holding).collect(),
                token,
                generation,
                waiting: waiters.len() + more_waiters,
                waiters,
                delayed: delayed.map(rounded),
                fences: fences
                    .into_iter()
                    .map(|fence| FenceView { resource: resource.clone(), ..fence })
                    .collect(),
                resource,
            }
        },
    )
}

fn renewal_events() -> impl Strategy<Value = RenewalEvents> {
    let noticed = (values::resource(), values::token(), values::why(), values::duration())
        .prop_map(|(resource, token, why, remaining)| (resource, token, why, rounded(remaining)));
    let ended = (values::resource(), values::token(), values::why());
    (vec(noticed, 0..3), vec(ended, 0..3), any::<bool>())
        .prop_map(|(noticed, ended, incomplete)| RenewalEvents { noticed, ended, incomplete })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn commands_survive_the_stream(command in values::command()) {
        // Session zero is nobody's: no session has that number.
        let session = grpc::session_of(&command);
        prop_assume!(session.is_none_or(|session| session.number.get() > 0));
        if let Some(frame) = grpc::client_frame(7, &command) {
            prop_assert_eq!(frame.frame, 7);
            let read = grpc::frame_command(frame, session, || unreachable!("no client opens over this stream"));
            prop_assert_eq!(read.unwrap(), Some(rounded_command(command)));
        }
    }

    #[test]
    fn commands_survive_single_calls(command in values::command()) {
        let expected = rounded_command(command.clone());
        let read = match command {
            Command::Open(open) => {
                let request = grpc::open_request(&open.holder, open.ttl, open.nonce, open.number);
                let opened = Open { ttl: rounded(open.ttl), secret: SECRET, ..open };
                prop_assert_eq!(grpc::open(request, SECRET).unwrap(), Command::Open(opened));
                return Ok(());
            }
            Command::Acquire(acquire) => {
                let read = grpc::acquire(proto::AcquireRequest::from(&*acquire), SECRET);
                read.map(|acquire| Command::Acquire(Box::new(acquire)))
            }
            Command::Close { by, why } => grpc::close(grpc::close_request(&by, why)),
            Command::CancelNonce { nonce } => grpc::cancel(grpc::cancel_nonce_request(nonce)),
            Command::Release { by, resource, token, rest } => {
                grpc::release(grpc::release_request(&by, &resource, token, rest))
            }
            Command::Transfer { by, resource, to } => {
                grpc::transfer(grpc::transfer_request(&by, &resource, to))
            }
            Command::Revoke { resource, session, now, reason } => {
                grpc::revoke(grpc::revoke_request(&resource, session, now, &reason))
            }
            Command::Write(write) => grpc::write(proto::WriteRequest::from(&*write)),
            _ => return Ok(()),
        };
        prop_assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn answers_survive_the_stream(done in values::done(), session in values::session_id()) {
        let content = grpc::answer_content(&Ok(done.clone()));
        if let Some(expected) = rounded_done(done, session) {
            prop_assert_eq!(grpc::read_done(content, Some(session)).unwrap(), expected);
        }
    }

    #[test]
    fn refusals_survive_the_stream(refusal in values::refusal()) {
        let content = grpc::answer_content(&Err(refusal.clone()));
        prop_assert_eq!(grpc::read_done(content, None).unwrap_err(), tenure_wire::ApiError::from(refusal));
    }

    #[test]
    fn renewals_survive(
        session in values::session(), number in values::number(), ttl in values::duration(),
        last_lease_revision in values::revision(), events in renewal_events(),
    ) {
        let events = (events != RenewalEvents::default()).then(|| Box::new(events));
        let answer = RenewalAnswer::Renewed { number, ttl: rounded(ttl), last_lease_revision, events };
        let message = grpc::renewed(session, &answer).unwrap();
        prop_assert_eq!(message.session_number, session.get());
        prop_assert_eq!(grpc::read_renewed(message.clone()).unwrap(), answer.clone());
        // The same as JSON, whichever way it came.
        let id = SessionId { number: session, secret: SECRET };
        let http = json::Renewed::new(id, None, &answer).unwrap();
        prop_assert_eq!(json::Renewed::of(&id.to_string(), &message), http);
    }

    #[test]
    fn leases_survive(view in lease()) {
        let read = grpc::read_lease(grpc::lease(&view)).unwrap();
        prop_assert_eq!(read, LeaseView { fences: Vec::new(), ..view });
    }

    #[test]
    fn a_lease_is_shown_as_http_shows_it(view in lease()) {
        let fences: Vec<proto::FenceView> = view.fences.iter().map(grpc::fence).collect();
        prop_assert_eq!(json::Lease::of(&grpc::lease(&view), &fences), json::Lease::from(&view));
    }

    #[test]
    fn grants_and_registers_are_shown_as_http_shows_them(
        grant in values::grant(), register in values::register(),
    ) {
        prop_assert_eq!(json::Granted::from(&grpc::grant(&grant)), json::Granted::from(&grant));
        let another = grpc::grant_to_another(&grant);
        prop_assert_eq!(json::Granted::from(&another), json::Granted::to_another(&grant));
        let message = grpc::register(&register);
        prop_assert_eq!(json::Register::from(&message), json::Register::from(&register));
        prop_assert_eq!(grpc::read_register(message).unwrap(), register);
    }
}

#[test]
fn sessions_and_past_leases_are_shown_as_http_shows_them() {
    let session = samples::session_view();
    assert_eq!(
        json::SessionSummary::from(&grpc::session_summary(&session)),
        json::SessionSummary::from(&session)
    );
    let past = PastLease::from(samples::transition());
    assert_eq!(json::Transition::of(&grpc::transition(&past)), Some(json::Transition::from(&past)));
}

#[test]
fn events_are_shown_as_http_shows_them() {
    for kind in samples::events() {
        let event = Event {
            revision: Revision::new(17),
            wall: WallTime::from_unix_millis(1_767_225_599_123),
            kind,
            identity: None,
        };
        let message = grpc::events_of(&[&event]).expect("one event");
        assert_eq!(json::Event::of(&message), [json::Event::from(&event)]);
    }
}

#[test]
fn a_push_says_what_the_event_was() {
    let session = SessionId { number: SessionNumber::new(7), secret: SECRET };
    let mut pushes = 0;
    for kind in samples::events() {
        let pushed = grpc::push_content(&kind, Revision::new(17))
            .map(|content| grpc::read_push(content, session).expect("a push of this version"));
        let expected = match kind {
            EventKind::Noticed { token, why, .. } => Some(Push::Noticed { token, why }),
            EventKind::Ended { token, why, .. } => Some(Push::Ended { token, why }),
            EventKind::Closed { why, .. } => Some(Push::Closed { why: Some(why) }),
            EventKind::Unqueued { number, .. } => Some(Push::Unqueued { number }),
            _ => None,
        };
        pushes += usize::from(expected.is_some());
        assert_eq!(pushed, expected);
    }
    assert!(pushes >= 4, "the samples have all four");
}

#[test]
fn a_kind_that_an_old_server_does_not_say_is_guessed() {
    let mut lease = grpc::lease(&samples::lease_view());
    lease.kind = proto::ResourceKind::Unspecified.into();
    lease.holders.truncate(1);
    lease.holders[0].mode = Some(Mode::Slots(5).into());
    assert_eq!(grpc::read_lease(lease.clone()).unwrap().kind, Some(KindSetting::Semaphore(5)));
    lease.holders.clear();
    assert_eq!(grpc::read_lease(lease).unwrap().kind, None);
}

/// A name or token in an answer that makes no sense says nothing of what was done.
#[test]
fn an_answer_that_cannot_be_read_is_not_taken_for_a_refusal() {
    use proto::server_frame::Content;
    let grant = proto::Grant { token: 0, ..grpc::grant(&samples::grant()) };
    let content = Content::Granted(proto::StreamGranted { grants: vec![grant] });
    let error = grpc::read_done(content, Some(samples::session_id(7))).unwrap_err();
    assert_eq!((error.code, error.effect), (tenure_wire::Code::Internal, tenure_wire::Effect::Unknown));
    let error = grpc::read_done(Content::Queued(proto::StreamQueued { ahead: 1 }), None).unwrap_err();
    assert_eq!(error.code, tenure_wire::Code::Internal, "an answer about no session");
}
