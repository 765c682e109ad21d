//! The world: who can do what next, and what must never be true. It decides no lease rule
//! ([`logic`](crate::logic) does); it is the network, the clocks, the scheduler and the consensus engine,
//! each as hostile as its promise allows.

use std::hash::{Hash, Hasher};

use stateright::{Model, Property};

use crate::Mutation;
use crate::logic::{
    Applied, Beats, Entry, Hold, Holder, Lease, Machine, ModelProposer, Reply, Request, SLOW_TICK, TICK, TTL,
    TTL_LONG, TTL_SHORT, Turn, Who,
};
use crate::rebase::{BASE, Shift, highest_number, rebase, renumber};
use crate::rules;
use crate::stage::{Drift, Sends, Stage, Start};
use crate::twin::Twin;

/// A healthy holder's TTL, in steps.
const LONG_STALL: u16 = TTL / TICK;

/// One stage with, perhaps, one rule taken out.
#[derive(Clone, Debug)]
pub struct World {
    /// What may happen.
    pub stage: Stage,
    /// What is broken.
    pub mutation: Mutation,
    /// Drive the shipped logic alongside.
    pub twin: bool,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A step of real time passes; holder 0's clock may run slow in it. Whoever does nothing in a step stands
    /// still.
    Tick {
        /// Whether it does.
        slow: bool,
    },
    /// A holder sends an open.
    Open(Who),
    /// A holder sends a renewal.
    Renew(Who),
    /// A holder asks for the resource.
    Acquire(Who),
    /// A holder gives its lease back: its permits have ended.
    Release(Who),
    /// A holder hands its lease to the other.
    Transfer(Who),
    /// An administrator revokes, by notice; it reaches the leader at once.
    Revoke,
    /// A renewal of nobody's reaches the leader.
    Noise,
    /// A command that changes nothing reaches the leader.
    Chatter,
    /// A message reaches a node. What is never delivered is lost.
    Deliver {
        /// Which node.
        node: Who,
        /// Which message.
        index: usize,
        /// It stays in the network, to come again.
        again: bool,
    },
    /// A node seals an entry and proposes it.
    Seal(Who),
    /// The leader's oldest entry is committed and applied, and answered.
    Apply,
    /// A holder receives something.
    Receive {
        /// What.
        index: usize,
        /// It stays in the network, to come again.
        again: bool,
    },
    /// Another leader is elected; of what was under way, the oldest `kept` entries are committed, and nobody
    /// answers them.
    Elect {
        /// Who.
        node: Who,
        /// How many.
        kept: usize,
    },
    /// The elected leader has applied the first entry of its term, and begins to lead.
    Take,
    /// The server breaks, in a stage with a healthy holder.
    Break(Fault),
    /// It works again.
    Mend,
}

/// What is wrong with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing.
    None,
    /// The leader stands still.
    Paused,
    /// It has no quorum, and receives nothing.
    Cut,
    /// It has its quorum, and receives nothing from clients.
    Deaf,
    /// There is no leader.
    NoLeader,
}

/// Everything at one moment.
#[derive(Clone, Debug)]
pub struct State {
    /// Holder 0's clock runs slow.
    pub slow: bool,
    /// Real time, which is what every node's clock shows.
    pub now: Beats,
    /// The proposers of leaders. A deposed node may have one, too.
    pub proposers: [Option<ModelProposer>; 2],
    /// What a node kept of a term that is over; only with the mutations that use it.
    pub kept: [Option<Box<ModelProposer>>; 2],
    /// Whose entries are committed.
    pub leader: Who,
    /// What the cluster has agreed.
    pub machine: Machine,
    /// The holders.
    pub holders: [Holder; 2],
    /// Under way to the nodes.
    pub requests: Vec<Request>,
    /// Under way to the holders.
    pub replies: Vec<Reply>,
    /// What may still happen.
    pub left: Sends,
    /// What is wrong with the server.
    pub fault: Fault,
    /// Holder 0 was renewed since the last fault, in a stage with a healthy holder.
    pub served: bool,
    /// For how many steps it was not; one more than a TTL is counted like any more.
    pub unserved: u16,
    /// What the last step has shown.
    pub seen: Seen,
    /// How far times have been moved back.
    pub shift: Shift,
    /// The shipped logic, in the same position.
    pub twin: Option<Box<Twin>>,
}

/// What must be seen somewhere, or the exploration has proved nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// A session expired.
    pub expired: bool,
    /// An entry left something behind.
    pub left_behind: bool,
    /// A renewal came too late for its session.
    pub too_late: bool,
    /// A renewal moved its session's deadline.
    pub renewed: bool,
    /// A healthy holder was served again after a stall longer than its TTL.
    pub outlived: bool,
}

impl State {
    /// What tells one state from another. The twin does not: it is where the model is, or the exploration has
    /// failed already.
    fn key(&self) -> impl Hash + PartialEq + '_ {
        (
            (self.slow, self.now, &self.proposers, &self.kept, self.leader, &self.machine, &self.holders),
            (&self.requests, &self.replies, self.left, self.fault, self.served, self.unserved, self.seen),
        )
    }

    fn turn(&self, stage: &Stage) -> Turn {
        Turn {
            now: self.now,
            applied: self.machine.time,
            k: self.machine.k(),
            pending: self.machine.sessions.iter().any(Option::is_some),
            receives: self.fault != Fault::Deaf,
            limit: stage.limit,
        }
    }

    fn send(&mut self, request: Request) {
        let place = self.requests.partition_point(|other| *other <= request);
        self.requests.insert(place, request);
    }

    fn reply(&mut self, reply: Reply) {
        let place = self.replies.partition_point(|other| *other <= reply);
        self.replies.insert(place, reply);
    }

    /// Forgets answers that can change nothing any more: fewer states, the same behaviour.
    fn forget_idle(&mut self) {
        let holders = &self.holders;
        self.replies.retain(|reply| {
            let holder = &holders[reply.to() as usize];
            match *reply {
                Reply::Renewed { number, noticed: None, ended: None, .. } | Reply::Opened { number, .. } => {
                    holder.sent.iter().any(|sent| sent.0 == number)
                }
                _ => true,
            }
        });
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.key() == other.key()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}

impl World {
    /// The protocol as it is, on this stage.
    pub fn sound(stage: Stage) -> World {
        World { stage, mutation: Mutation::None, twin: false }
    }

    /// The same with one rule taken out.
    pub fn mutated(stage: Stage, mutation: Mutation) -> World {
        World { stage, mutation, twin: false }
    }

    /// The protocol as it is, with the shipped logic alongside.
    pub fn twinned(stage: Stage) -> World {
        World { stage, mutation: Mutation::None, twin: true }
    }

    fn start(&self) -> State {
        let (alone, fresh) = (self.stage.start == Start::Alone, self.stage.start == Start::Fresh);
        let mut machine = Machine::new(BASE);
        if !fresh {
            machine = machine.with_session(0, false);
        }
        if !alone {
            machine = machine.with_session(1, true);
        }
        let other = if alone { TTL_SHORT } else { TTL_LONG };
        let mut holders = [Holder::new(0, TTL, fresh, BASE), Holder::new(1, other, alone, BASE)];
        let first = match self.stage.start {
            Start::Held | Start::Alone => Some(0),
            Start::Behind => Some(1),
            Start::Free | Start::Fresh => None,
        };
        if let Some(who) = first {
            machine.holds.push(Hold { who, token: 1, ends_at: None });
            machine.last_token = 1;
            holders[who as usize].lease =
                Some(Lease { token: 1, giving_back: false, notice: None, ended: false });
            if !alone {
                machine.queue.push(1 - who);
            }
        }
        let twin = self.twin.then(|| Box::new(Twin::new(&self.stage)));
        State {
            slow: false,
            now: BASE,
            proposers: [Some(ModelProposer::start_term(BASE, BASE)), None],
            kept: [None, None],
            leader: 0,
            machine,
            holders,
            requests: Vec::new(),
            replies: Vec::new(),
            left: self.stage.sends,
            fault: Fault::None,
            served: true,
            unserved: 0,
            seen: Seen::default(),
            shift: Shift::default(),
            twin,
        }
    }

    /// Whether a step of time may pass: always, except that a server without a fault serves a healthy holder
    /// within the step.
    fn time_may_pass(&self, state: &State) -> bool {
        let proposer = state.proposers[state.leader as usize].as_ref();
        let idle = proposer
            .is_some_and(|proposer| proposer.in_flight.is_empty() && !proposer.due(&state.turn(&self.stage)));
        let served = state.requests.is_empty() && state.replies.is_empty() && idle;
        !self.stage.healthy || state.fault != Fault::None || served
    }

    fn sends(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        let open = state.holders[0].deadline.is_some() && !state.holders[0].session_ended;
        if !self.stage.healthy && left.renewals > 0 && open {
            actions.push(Action::Renew(0));
        }
        if left.opens > 0 && !state.holders[0].session_ended {
            actions.push(Action::Open(0));
        }
        if left.opens_other > 0 {
            actions.push(Action::Open(1));
        }
        for who in 0..2u8 {
            let lease = state.holders[who as usize].lease;
            let open = state.holders[who as usize].deadline.is_some();
            if left.acquires[who as usize] > 0 && open && lease.is_none_or(|lease| lease.ended) {
                actions.push(Action::Acquire(who));
            }
            let has = lease.is_some_and(|lease| !lease.ended && !lease.giving_back);
            if left.releases[who as usize] > 0 && has {
                actions.push(Action::Release(who));
            }
            if who == 0 && left.transfers > 0 && has {
                actions.push(Action::Transfer(who));
            }
        }
        if state.proposers[state.leader as usize].is_some() && state.fault == Fault::None {
            let arriving = [
                (left.revocations, Action::Revoke),
                (left.noise, Action::Noise),
                (left.chatter, Action::Chatter),
            ];
            actions.extend(arriving.into_iter().filter(|(many, _)| *many > 0).map(|(_, action)| action));
        }
    }

    fn node_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for node in 0..2u8 {
            let Some(proposer) = &state.proposers[node as usize] else { continue };
            if node == state.leader && state.fault == Fault::Paused {
                continue;
            }
            if !matches!(state.fault, Fault::Deaf | Fault::Cut) {
                for index in 0..state.requests.len() {
                    actions.push(Action::Deliver { node, index, again: false });
                    if state.left.repeats > 0 {
                        actions.push(Action::Deliver { node, index, again: true });
                    }
                }
            }
            if proposer.in_flight.len() < self.stage.in_flight && proposer.due(&state.turn(&self.stage)) {
                actions.push(Action::Seal(node));
            }
            if node == state.leader && !proposer.in_flight.is_empty() && state.fault != Fault::Cut {
                actions.push(Action::Apply);
            }
        }
    }

    fn elections(&self, state: &State, actions: &mut Vec<Action>) {
        let seated = state.proposers[state.leader as usize].as_ref();
        let Some(proposer) = seated else { return actions.push(Action::Take) };
        if state.left.elections > 0 && state.served {
            for kept in 0..=proposer.in_flight.len() {
                actions.push(Action::Elect { node: 1 - state.leader, kept });
                if !self.stage.deposed_goes_on {
                    actions.push(Action::Elect { node: state.leader, kept });
                }
            }
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        match state.fault {
            Fault::None if state.left.faults > 0 && state.served => {
                actions.extend([Fault::Paused, Fault::Cut, Fault::Deaf].map(Action::Break));
            }
            Fault::Paused | Fault::Cut | Fault::Deaf => actions.push(Action::Mend),
            Fault::None | Fault::NoLeader => {}
        }
    }

    fn tick(&self, state: &mut State, slow: bool) {
        state.now += TICK;
        state.holders[0].clock += if slow { SLOW_TICK } else { TICK };
        state.holders[1].clock += TICK;
        let turn = state.turn(&self.stage);
        if state.fault != Fault::Paused
            && let Some(proposer) = &mut state.proposers[state.leader as usize]
        {
            proposer.woke(&turn, self.mutation);
        }
        if let Some(twin) = &state.twin {
            state.holders.iter().for_each(|holder| twin.compare_holder(holder));
        }
        // A healthy holder sends in every step, and again if the last one got no answer: only the newest is
        // looked at.
        if self.stage.healthy {
            state.unserved = (state.unserved + 1).min(LONG_STALL + 1);
            state.requests.clear();
            state.replies.clear();
            state.holders[0].sent.clear();
            state.holders[0].next_number = highest_number(state) + 1;
            let number = state.holders[0].transmit();
            state.requests.push(Request::Renew { who: 0, number });
        }
    }

    fn transmit(&self, state: &mut State, who: Who, request: impl FnOnce(u8) -> Request) {
        let number = state.holders[who as usize].transmit();
        if let Some(twin) = &mut state.twin {
            twin.transmit(&state.holders[who as usize], number);
        }
        state.send(request(number));
    }

    fn arrives(&self, state: &mut State, node: Who, request: Request) {
        let now = state.now;
        if let Some(proposer) = &mut state.proposers[node as usize] {
            proposer.arrived(request, now, self.mutation);
            if let Some(twin) = &mut state.twin
                && node == state.leader
            {
                twin.arrived(node, request);
            }
        }
    }

    fn give_back(&self, state: &mut State, who: Who, request: impl FnOnce(u8) -> Request) {
        let Some(lease) = &mut state.holders[who as usize].lease else { return };
        lease.giving_back = true;
        let request = request(lease.token);
        if let Some(twin) = &mut state.twin {
            twin.give_back(&state.holders[who as usize]);
        }
        state.send(request);
    }

    fn seal(&self, state: &mut State, node: Who) {
        let turn = state.turn(&self.stage);
        let Some(proposer) = &mut state.proposers[node as usize] else { return };
        let entry = proposer.seal(&turn, self.mutation);
        let proposer = proposer.clone();
        state.seen.left_behind |= !proposer.inbox.is_empty();
        if node == state.leader {
            if let Some(twin) = &mut state.twin {
                twin.seal(node, &turn, &entry);
            }
            state.proposers[node as usize] = Some(proposer).map(|mut proposer| {
                proposer.in_flight.push(entry);
                proposer
            });
        } else if self.mutation == Mutation::DeposedAnswers {
            let applied = state.machine.clone().apply(&entry, self.mutation);
            applied.replies.into_iter().for_each(|reply| state.reply(reply));
        } // else nobody will ever be notified of this entry
    }

    /// Applies an entry of the log. Opens that come after their session's end are left out: see the machine.
    fn apply(&self, state: &mut State, entry: &Entry) -> Applied {
        let renews = entry.batch.iter().any(|request| matches!(request, Request::Renew { who: 0, .. }));
        let deadline = state.machine.sessions[0].as_ref().map(|session| session.deadline);
        let applied = state.machine.apply(entry, self.mutation);
        state.seen.renewed =
            state.machine.sessions[0].as_ref().map(|session| session.deadline) > deadline && renews;
        state.seen.expired |= !applied.expired.is_empty();
        state.seen.too_late |= renews && state.machine.sessions[0].is_none();
        if renews && state.machine.sessions[0].is_some() && self.stage.healthy {
            state.seen.outlived = state.unserved > LONG_STALL;
            (state.served, state.unserved) = (true, 0);
        }
        if let Some(twin) = &mut state.twin {
            twin.apply(entry, &state.machine, &applied);
        }
        applied
    }

    fn commit(&self, state: &mut State) {
        let leader = state.leader as usize;
        let Some(proposer) = &mut state.proposers[leader] else { return };
        let entry = proposer.in_flight.remove(0);
        let applied = self.apply(state, &entry);
        applied.replies.into_iter().for_each(|reply| state.reply(reply));
        if let Some(twin) = &mut state.twin {
            twin.applied(state.leader);
        }
    }

    fn receive(&self, state: &mut State, index: usize, again: bool) {
        let reply = if again { state.replies[index] } else { state.replies.remove(index) };
        let who = reply.to() as usize;
        state.holders[who].receive(reply, self.mutation);
        if let Some(twin) = &mut state.twin {
            twin.receive(&state.holders[who], reply);
        }
    }

    fn elect(&self, state: &mut State, node: Who, kept: usize) {
        let old = state.leader as usize;
        let Some(mut proposer) = state.proposers[old].take() else { return };
        let under_way = std::mem::take(&mut proposer.in_flight);
        for entry in &under_way[..kept] {
            self.apply(state, entry);
        }
        if let Some(twin) = &mut state.twin {
            twin.leave(state.leader);
        }
        if matches!(self.mutation, Mutation::OldReadingKept | Mutation::InboxKept) {
            state.kept[old] = Some(Box::new(proposer.clone()));
        }
        if self.stage.deposed_goes_on {
            state.proposers[old] = Some(proposer);
        }
        state.leader = node;
        state.proposers[node as usize] = None;
        state.fault = if self.stage.healthy { Fault::NoLeader } else { Fault::None };
        state.left.elections -= 1;
    }

    fn take(&self, state: &mut State) {
        let node = state.leader;
        let mut proposer = ModelProposer::start_term(state.machine.time, state.now);
        if let Some(kept) = state.kept[node as usize].take() {
            match self.mutation {
                Mutation::OldReadingKept => proposer.last = kept.last,
                Mutation::InboxKept => proposer.inbox = kept.inbox,
                _ => {}
            }
        }
        state.proposers[node as usize] = Some(proposer);
        state.fault = Fault::None;
        state.served = !self.stage.healthy;
        if let Some(twin) = &mut state.twin {
            twin.take(node, state.now);
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let start = self.start();
        let slow = State { slow: true, ..start.clone() };
        if self.stage.drift == Drift::Steady { vec![start, slow] } else { vec![start] }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.time_may_pass(state) {
            actions.push(Action::Tick { slow: state.slow });
            if self.stage.drift == Drift::Free {
                actions.push(Action::Tick { slow: true });
            }
        }
        self.sends(state, actions);
        self.node_actions(state, actions);
        for index in 0..state.replies.len() {
            actions.push(Action::Receive { index, again: false });
            if state.left.repeats > 0 {
                actions.push(Action::Receive { index, again: true });
            }
        }
        self.elections(state, actions);
        self.faults(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        state.seen = Seen::default();
        match action {
            Action::Tick { slow } => self.tick(state, slow),
            Action::Open(who) => {
                let left = if who == 0 { &mut state.left.opens } else { &mut state.left.opens_other };
                *left -= 1;
                self.transmit(state, who, |number| Request::Open { who, number });
            }
            Action::Renew(who) => {
                state.left.renewals -= 1;
                self.transmit(state, who, |number| Request::Renew { who, number });
            }
            Action::Acquire(who) => {
                state.left.acquires[who as usize] -= 1;
                if self.mutation == Mutation::AcquireMovesDeadline {
                    state.holders[who as usize].asked = Some(state.holders[who as usize].clock);
                }
                state.send(Request::Acquire { who });
            }
            Action::Release(who) => {
                state.left.releases[who as usize] -= 1;
                self.give_back(state, who, |token| Request::Release { who, token });
            }
            Action::Transfer(who) => {
                state.left.transfers -= 1;
                self.give_back(state, who, |token| Request::Transfer { who, token });
            }
            Action::Revoke => {
                state.left.revocations -= 1;
                self.arrives(state, state.leader, Request::Revoke);
            }
            Action::Noise => {
                state.left.noise -= 1;
                self.arrives(state, state.leader, Request::Noise);
            }
            Action::Chatter => {
                state.left.chatter -= 1;
                self.arrives(state, state.leader, Request::Chatter);
            }
            Action::Deliver { node, index, again } => {
                state.left.repeats -= u8::from(again);
                let request = if again { state.requests[index] } else { state.requests.remove(index) };
                self.arrives(state, node, request);
            }
            Action::Seal(node) => self.seal(state, node),
            Action::Apply => self.commit(state),
            Action::Receive { index, again } => {
                state.left.repeats -= u8::from(again);
                self.receive(state, index, again);
            }
            Action::Elect { node, kept } => self.elect(state, node, kept),
            Action::Take => self.take(state),
            Action::Break(fault) => {
                state.left.faults -= 1;
                state.fault = fault;
            }
            Action::Mend => {
                state.fault = Fault::None;
                state.served = false;
            }
        }
        state.forget_idle();
        rebase(state);
        if self.stage.healthy {
            renumber(state);
        }
        let shift = state.shift;
        state.twin.iter_mut().for_each(|twin| twin.shifted(shift));
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules::properties(self)
    }
}
