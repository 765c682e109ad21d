//! The shipped logic, driven alongside the model. Whatever happens in the model happens to `tenure_core`'s
//! own proposer, machine and holders, too; they must seal the same entries, agree on the same state, give the
//! same answers and the same permits. A difference is a panic that says where.
//!
//! States are distinguished by the model alone, and the checker takes every action in every state: so every
//! transition of the model is compared with the shipped one, from one of the ways that lead there.

use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Bounds, Caller, ClusterTime, Command, Done, EndReason, Entry as LogEntry, EventKind,
    Generation, Grant, Holder as CoreHolder, HolderOptions, Machine as CoreMachine, MachineTime, Message,
    Mode, Moment, Nonce, Open, Policies, Proposer, ProposerLimits, QueueKind, Refusal, Renewal,
    RenewalAnswer, RenewalEvents, ResourceName, Revision, Secret, SessionId, SessionNumber, Timing,
    TimingNumbers, Token, Wait, WallTime,
};

use crate::logic::{
    Applied, Beats, Entry, Holder, Machine, Reply, Request, SIGMA, TTL, TTL_LONG, TTL_SHORT, Turn, Who,
};
use crate::rebase::{BASE, Shift};
use crate::stage::{Stage, Start};

/// One beat: an eighth of a second, so that a TTL of sixteen is two seconds and K is half a second.
const BEAT: Duration = Duration::from_millis(125);
/// What [`SLOW_TICK`](crate::logic::SLOW_TICK) amounts to.
const RHO_PPM: u32 = 250_000;

/// The shipped logic at one moment.
#[derive(Clone, Debug)]
pub struct Twin {
    proposers: [Proposer<Request>; 2],
    machine: CoreMachine,
    /// None in a stage whose holder is scheduled by the stage.
    holders: Option<[CoreHolder; 2]>,
    ttls: [Beats; 2],
    /// The numbers of the sessions, in the order in which they are opened.
    numbers: [u64; 2],
    /// The leader's proposals, oldest first: the number of each and what rides in it.
    under_way: Vec<(u64, Vec<Request>)>,
    /// The proposal that was applied and has yet to be answered.
    answering: Option<u64>,
    /// How far the model's times have been moved back.
    shift: Shift,
}

impl Message for Request {
    fn queue(&self) -> QueueKind {
        match self {
            Request::Renew { .. } | Request::Noise => QueueKind::Renewal,
            Request::Open { .. } => QueueKind::Open,
            _ => QueueKind::Other,
        }
    }

    fn bytes(&self) -> usize {
        1
    }
}

impl Twin {
    /// The shipped logic where the stage begins.
    pub fn new(stage: &Stage) -> Twin {
        let limits = ProposerLimits {
            renewals_per_entry_max: stage.limit,
            opens_per_entry_max: stage.limit,
            in_flight_max: stage.in_flight,
            ..ProposerLimits::default()
        };
        let ttls = [TTL, if stage.start == Start::Alone { TTL_SHORT } else { TTL_LONG }];
        let (alone, fresh) = (stage.start == Start::Alone, stage.start == Start::Fresh);
        let numbers = if fresh { [2, 1] } else { [1, 2] };
        let opened: Vec<Who> = (0..2).filter(|who| if *who == 0 { !fresh } else { !alone }).collect();
        let mut commands: Vec<Command> =
            opened.iter().map(|who| open(*who, 1, ttls[*who as usize])).collect();
        let (first, second) = match stage.start {
            Start::Held => (Some(0), Some(1)),
            Start::Behind => (Some(1), Some(0)),
            Start::Alone => (Some(0), None),
            Start::Free | Start::Fresh => (None, None),
        };
        commands.extend(first.into_iter().chain(second).map(|who| acquire(session(numbers, who))));
        let mut machine = CoreMachine::default();
        machine.apply(LogEntry {
            at: cluster(BASE.into()),
            wall: WallTime::default(),
            renewals: vec![],
            commands,
        });
        let mut holders = ttls.map(|ttl| CoreHolder::new(timing(ttl), HolderOptions::default()));
        for who in opened {
            let holder = &mut holders[who as usize];
            let number = holder.transmit(moment(BASE.into()), 0);
            holder.opened(number, span(ttls[who as usize]), moment(BASE.into()));
        }
        if let Some(first) = first {
            holders[first as usize].granted(&grant(session(numbers, first), 1), &[], moment(BASE.into()));
        }
        let mut proposers = [Proposer::new(limits.clone()), Proposer::new(limits)];
        proposers[0].start_term(machine_time(&machine), moment(BASE.into()));
        let holders = (!stage.healthy).then_some(holders);
        Twin {
            proposers,
            machine,
            holders,
            ttls,
            numbers,
            under_way: Vec::new(),
            answering: None,
            shift: Shift::default(),
        }
    }

    /// A message has arrived at the leader.
    pub fn arrived(&mut self, node: Who, request: Request) {
        let request = match request {
            Request::Renew { who, number } => Request::Renew { who, number: number + self.shift.numbers },
            other => other,
        };
        let taken = self.proposers[node as usize].arrived(request);
        assert!(taken.is_ok(), "twin: the proposer gave {request:?} back");
    }

    /// The leader has sealed an entry; the shipped proposer must seal the same.
    pub fn seal(&mut self, node: Who, turn: &Turn, entry: &Entry) {
        let now = moment(i32::from(turn.now) + self.shift.now);
        let proposer = &mut self.proposers[node as usize];
        if turn.receives {
            proposer.probe_sent(0, now);
            proposer.probe_returned(0);
        }
        let sealed =
            proposer.seal(|| now).expect("twin: the model's proposer seals, the shipped one does not");
        assert_eq!(sealed.at, self.cluster(entry.at), "twin: the stamp of {entry:?}");
        let unnumbered = |batch: &[Request]| {
            batch.iter().map(|request| self.unnumbered(*request)).collect::<Vec<Request>>()
        };
        assert_eq!(unnumbered(&sealed.batch), unnumbered(&entry.batch), "twin: what rides in {entry:?}");
        self.under_way.push((sealed.number, sealed.batch));
    }

    /// An entry was applied; the shipped machine must come to the same state and answers.
    pub fn apply(&mut self, entry: &Entry, model: &Machine, applied: &Applied) {
        // An open that comes after its session has ended opens another one, which is nobody's here.
        let of = |request: &&Request| !matches!(request, Request::Open { who, .. } if model.sessions[*who as usize].is_none());
        let (number, batch) = self.under_way.remove(0);
        self.answering = Some(number);
        let (renewing, commanding): (Vec<Request>, Vec<Request>) =
            batch.iter().filter(of).partition(|request| request.queue() == QueueKind::Renewal);
        let renewals = renewing.iter().map(|request| self.renewal(*request)).collect();
        let commands = commanding.iter().map(|request| self.command(*request)).collect();
        let real = self.machine.apply(LogEntry {
            at: self.cluster(entry.at),
            wall: WallTime::default(),
            renewals,
            commands,
        });
        let mut said: Vec<Reply> = Vec::new();
        for (request, answer) in commanding.iter().zip(&real.answers) {
            said.extend(answered(*request, answer));
        }
        for event in self.machine.fresh_events().to_vec() {
            match &event.kind {
                EventKind::Granted { session, token, .. } => {
                    let reply =
                        Reply::Granted { to: self.who(*session), token: small(*token), waited: false };
                    if !said.contains(&reply) {
                        said.push(Reply::Granted {
                            to: self.who(*session),
                            token: small(*token),
                            waited: true,
                        });
                    }
                }
                EventKind::Noticed { session, token, .. } => {
                    said.push(Reply::Noticed { to: self.who(*session), token: small(*token) });
                }
                _ => {}
            }
        }
        said.extend(
            renewing.iter().zip(&real.renewals).filter_map(|(request, answer)| renewed(request, answer)),
        );
        let mut expected: Vec<Reply> =
            applied.replies.iter().map(|reply| self.unnumbered_reply(*reply)).collect();
        said.iter_mut().for_each(|reply| *reply = self.unnumbered_reply(*reply));
        said.sort();
        expected.sort();
        assert_eq!(said, expected, "twin: what applying {entry:?} answers");
        self.compare_machine(model);
    }

    /// The leader's proposer is notified of what was applied.
    pub fn applied(&mut self, node: Who) {
        let number = self.answering.take().expect("only what was applied is answered");
        let proposer = &mut self.proposers[node as usize];
        proposer.applied(machine_time(&self.machine));
        proposer.answered(number);
    }

    /// A node steps down.
    pub fn leave(&mut self, node: Who) {
        self.proposers[node as usize].end_term();
        self.under_way.clear();
        self.answering = None;
    }

    /// A node becomes leader.
    pub fn take(&mut self, node: Who, now: Beats) {
        let took = Command::BecameLeader { node: u64::from(node), term: 1 };
        let at = self.machine.time();
        self.machine.apply(LogEntry {
            at,
            wall: WallTime::default(),
            renewals: vec![],
            commands: vec![took],
        });
        self.proposers[node as usize]
            .start_term(machine_time(&self.machine), moment(i32::from(now) + self.shift.now));
    }

    /// A holder has sent an open or a renewal.
    pub fn transmit(&mut self, model: &Holder, number: u8) {
        let Some(holders) = &mut self.holders else { return };
        let now = moment(i32::from(model.clock) + self.shift.clocks[model.who as usize]);
        let real = holders[model.who as usize].transmit(now, 0);
        assert_eq!(real, u64::from(number), "twin: the number of a transmission");
        self.compare_holder(model);
    }

    /// A holder has sent a release or a transfer.
    pub fn give_back(&mut self, model: &Holder) {
        let Some(holders) = &mut self.holders else { return };
        let token = token(model.lease.expect("only a lease is given back").token);
        holders[model.who as usize].give_back(token).expect("no permit is out");
        self.compare_holder(model);
    }

    /// A holder has received something.
    pub fn receive(&mut self, model: &Holder, reply: Reply) {
        let Some(holders) = &mut self.holders else { return };
        let holder = &mut holders[model.who as usize];
        let now = moment(i32::from(model.clock) + self.shift.clocks[model.who as usize]);
        match reply {
            Reply::Renewed { number, noticed, ended, .. } => {
                let name = resource();
                let noticed = noticed.map(|it| (name.clone(), token(it), EndReason::Revoked, Duration::ZERO));
                let ended = ended.map(|it| (name.clone(), token(it), EndReason::Revoked));
                let events = (noticed.is_some() || ended.is_some()).then(|| {
                    Box::new(RenewalEvents {
                        noticed: noticed.into_iter().collect(),
                        ended: ended.into_iter().collect(),
                        incomplete: false,
                    })
                });
                let ttl = span(model.ttl);
                let answer = RenewalAnswer::Renewed {
                    number: number.into(),
                    ttl,
                    last_lease_revision: Revision::default(),
                    events,
                };
                holder.renewed(&answer, now);
            }
            Reply::Opened { number, .. } => holder.opened(number.into(), span(model.ttl), now),
            Reply::Unknown { .. } => {
                holder.renewed(&RenewalAnswer::UnknownSession, now);
            }
            Reply::Granted { token, .. } => {
                holder.granted(&grant(session(self.numbers, model.who), token), &[], now)
            }
            Reply::Released { token: it, .. } => holder.gave_back(token(it), EndReason::Released),
            Reply::Noticed { token: it, .. } => holder.noticed(token(it), EndReason::Revoked),
        }
        self.compare_holder(model);
    }

    /// The shipped holder must give a permit exactly where the model's may act.
    pub fn compare_holder(&self, model: &Holder) {
        let Some(holders) = &self.holders else { return };
        let holder = &holders[model.who as usize];
        let now = moment(i32::from(model.clock) + self.shift.clocks[model.who as usize]);
        assert_eq!(
            holder.session_ended(),
            model.session_ended,
            "twin: whether the session of {model:?} has ended"
        );
        // Of a TTL of an hour the model only says that there is plenty left.
        let short = model.ttl <= TTL;
        let left = span(model.deadline.unwrap_or(0).saturating_sub(model.clock));
        assert!(
            !short || holder.remaining(now) == left,
            "twin: {:?} is left for {model:?}",
            holder.remaining(now)
        );
        let Some(lease) = model.lease else { return };
        let permit = holder.permit(token(lease.token), now, Duration::ZERO);
        let may_act = model.may_act(crate::Mutation::None).is_some();
        assert_eq!(permit.is_ok(), may_act, "twin: {permit:?} for {model:?}");
        if let Ok(permit) = permit
            && short
        {
            let left = span(model.lease_deadline() - model.clock);
            assert_eq!(permit.remaining(now), left, "twin: what is left of the lease for {model:?}");
        }
    }

    fn compare_machine(&self, model: &Machine) {
        assert_eq!(self.machine.time(), self.cluster(model.time), "twin: cluster time of {model:?}");
        let state = self.machine.capture();
        for (who, session) in model.sessions.iter().enumerate() {
            let pulse = state.pulses.get(SessionNumber::new(self.numbers[who]));
            assert_eq!(pulse.is_some(), session.is_some(), "twin: whether session {who} lives in {model:?}");
            if let (Some(pulse), Some(session)) = (pulse, session)
                && session.ttl <= TTL
            {
                assert_eq!(
                    pulse.deadline,
                    self.cluster(session.deadline),
                    "twin: deadline {who} of {model:?}"
                );
                let number = u64::from(session.number + self.shift.numbers);
                assert_eq!(pulse.number, number, "twin: number {who} of {model:?}");
            }
        }
        let view = self.machine.lease(&resource());
        let holders = view.iter().flat_map(|view| &view.holders);
        let real: Vec<(u8, u8, bool)> =
            holders.map(|hold| (self.who(hold.session), small(hold.token), hold.notice.is_some())).collect();
        let said: Vec<(u8, u8, bool)> =
            model.holds.iter().map(|hold| (hold.who, hold.token, hold.ends_at.is_some())).collect();
        assert_eq!(real, said, "twin: who holds in {model:?}");
        let real: Vec<u8> =
            view.iter().flat_map(|view| &view.waiters).map(|waiter| self.who(waiter.session)).collect();
        assert_eq!(real, model.queue, "twin: who waits in {model:?}");
    }

    fn command(&self, request: Request) -> Command {
        let caller = |who| Caller::unnumbered(session(self.numbers, who));
        match request {
            Request::Open { who, number } => open(who, number, self.ttls[who as usize]),
            Request::Acquire { who } => acquire(session(self.numbers, who)),
            Request::Release { who, token: it } => {
                Command::Release { by: caller(who), resource: resource(), token: Some(token(it)), rest: None }
            }
            Request::Transfer { who, .. } => Command::Transfer {
                by: caller(who),
                resource: resource(),
                to: session(self.numbers, 1 - who).number,
            },
            Request::Revoke => Command::Revoke {
                resource: resource(),
                session: None,
                now: false,
                reason: "for the model".into(),
            },
            // Of a session that never was.
            Request::Chatter => {
                let nobody = SessionId { number: SessionNumber::new(99), secret: Secret::new([99; 16]) };
                Command::Release {
                    by: Caller::unnumbered(nobody),
                    resource: resource(),
                    token: None,
                    rest: None,
                }
            }
            Request::Renew { .. } | Request::Noise => unreachable!("renewals ride apart"),
        }
    }

    fn renewal(&self, request: Request) -> Renewal {
        match request {
            Request::Renew { who, number } => {
                Renewal { session: session(self.numbers, who).number, number: number.into() }
            }
            _ => Renewal { session: SessionNumber::new(0), number: 1 },
        }
    }

    /// How far the model's times have been moved back by now.
    pub(crate) fn shifted(&mut self, shift: Shift) {
        self.shift = shift;
    }

    fn cluster(&self, time: Beats) -> ClusterTime {
        cluster(i32::from(time) + self.shift.cluster)
    }

    /// On a stage whose transmissions are renumbered, what carries no number to compare.
    fn unnumbered(&self, request: Request) -> Request {
        match request {
            Request::Renew { who, .. } if self.holders.is_none() => Request::Renew { who, number: 0 },
            other => other,
        }
    }

    fn unnumbered_reply(&self, reply: Reply) -> Reply {
        match reply {
            Reply::Renewed { to, noticed, ended, .. } if self.holders.is_none() => {
                Reply::Renewed { to, number: 0, noticed, ended }
            }
            other => other,
        }
    }

    fn who(&self, session: SessionNumber) -> Who {
        if session.get() == self.numbers[0] { 0 } else { 1 }
    }
}

fn machine_time(machine: &CoreMachine) -> MachineTime {
    MachineTime {
        time: machine.time(),
        earliest_deadline: machine.earliest_deadline(),
        smallest_ttl: machine.smallest_ttl(),
    }
}

fn span(beats: Beats) -> Duration {
    BEAT * u32::from(beats)
}

/// An absolute time, in beats.
fn absolute(beats: i32) -> Duration {
    BEAT * u32::try_from(beats).expect("time starts at the base")
}

fn moment(clock: i32) -> Moment {
    Moment::from_readings(absolute(clock), absolute(clock))
}

fn cluster(beats: i32) -> ClusterTime {
    ClusterTime::ZERO.plus(absolute(beats))
}

fn timing(ttl: Beats) -> Timing {
    let ttl = span(ttl);
    let numbers = TimingNumbers {
        renew_every: ttl / 4,
        rho_ppm: RHO_PPM,
        sigma: span(SIGMA),
        ..TimingNumbers::for_ttl(ttl)
    };
    let bounds = Bounds { retry: Duration::ZERO, ..Bounds::default() };
    numbers.checked(&bounds).expect("the model's numbers fit together")
}

fn resource() -> ResourceName {
    "settlement/cron".parse().expect("a resource name")
}

fn session(numbers: [u64; 2], who: Who) -> SessionId {
    SessionId { number: SessionNumber::new(numbers[who as usize]), secret: Secret::new([who; 16]) }
}

fn token(number: u8) -> Token {
    Token::try_from(u64::from(number)).expect("tokens start at one")
}

fn small(token: Token) -> u8 {
    u8::try_from(token.get()).expect("few tokens are issued on a stage")
}

fn open(who: Who, number: u8, ttl: Beats) -> Command {
    Command::Open(Open {
        holder: "holder".parse().expect("a holder's name"),
        ttl: span(ttl),
        nonce: Some(Nonce::new([who; 16])),
        secret: Secret::new([who; 16]),
        number: number.into(),
    })
}

fn acquire(session: SessionId) -> Command {
    Command::Acquire(Box::new(Acquire {
        by: AcquireBy::Session(Caller::unnumbered(session)),
        resources: vec![resource()],
        mode: Mode::Exclusive,
        wait: Wait::Forever,
        policies: Policies::default(),
        fences: vec![],
        transmission: None,
    }))
}

fn grant(session: SessionId, number: u8) -> Grant {
    Grant {
        resource: resource(),
        session,
        holder: "holder".parse().expect("a holder's name"),
        mode: Mode::Exclusive,
        slot: None,
        token: token(number),
        generation: Generation::new(number.into()),
        remaining: Duration::ZERO,
        ttl: span(TTL),
        waited: Duration::ZERO,
        fences: vec![],
    }
}

fn renewed(request: &Request, answer: &RenewalAnswer) -> Option<Reply> {
    let Request::Renew { who: to, .. } = *request else { return None };
    Some(match answer {
        RenewalAnswer::UnknownSession => Reply::Unknown { to },
        RenewalAnswer::Renewed { number, events, .. } => {
            let noticed = events.iter().flat_map(|events| &events.noticed).map(|it| small(it.1)).next();
            let ended = events.iter().flat_map(|events| &events.ended).map(|it| small(it.1)).next();
            Reply::Renewed { to, number: u8::try_from(*number).unwrap_or(u8::MAX), noticed, ended }
        }
    })
}

fn answered(request: Request, answer: &Result<Done, Refusal>) -> Option<Reply> {
    match (request, answer) {
        (Request::Open { who: to, number }, Ok(Done::Opened { .. })) => Some(Reply::Opened { to, number }),
        (Request::Acquire { who: to }, Ok(Done::Granted { grants, .. })) => {
            Some(Reply::Granted { to, token: small(grants[0].token), waited: false })
        }
        (Request::Release { who: to, token }, Ok(Done::Released { .. })) => {
            Some(Reply::Released { to, token })
        }
        (Request::Acquire { who: to } | Request::Release { who: to, .. }, Err(Refusal::UnknownSession)) => {
            Some(Reply::Unknown { to })
        }
        _ => None,
    }
}
