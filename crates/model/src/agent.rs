//! The host agent between a client and the store: it coalesces, it never vouches.
//!
//! Client and agent share the host's clock, which runs at the store's rate or as slow as rho allows. Messages of all four kinds are
//! late or lost; the client's process may stop asking at any time. All times are ages or remainders, so the model has no horizon.

use stateright::{Model, Property};

use crate::Mutation;
use crate::minds::{Beats, SLOW_TICK, TICK, TTL, usable};

/// The model: one host, with one rule taken out or none.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// What is broken.
    pub mutation: Mutation,
}

/// Something under way. Every age counts on the host's clock, from the reading that its sender made before sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mail {
    /// The client asks the agent what is left.
    Ask {
        /// Since when.
        age: Beats,
    },
    /// The agent answers.
    Left {
        /// Since the question was sent; `None` if it answers none.
        age: Option<Beats>,
        /// What was left.
        left: Beats,
    },
    /// The agent renews at the store.
    Renew {
        /// Since when.
        age: Beats,
    },
    /// The store has renewed.
    Renewed {
        /// Since the renewal was sent.
        age: Beats,
    },
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// What the store still gives the session; `None` once it has ended.
    pub session: Option<Beats>,
    /// What the agent believes to be left, on the host's clock.
    pub agent: Beats,
    /// What was left when the agent last heard from the store; only with the mutation that answers it.
    pub agent_heard: Beats,
    /// The client asked since the agent's last renewal.
    pub asked: bool,
    /// What the client believes to be left: it may act while there is any.
    pub client: Beats,
    /// Under way, each kind at most once.
    pub mail: Vec<Mail>,
    /// The agent renewed for a client that had not asked.
    pub vouched: bool,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A step of the store's time passes.
    Tick {
        /// The host's clock runs slow in it.
        slow: bool,
    },
    /// The client asks.
    Ask,
    /// The agent renews.
    Renew,
    /// The agent pushes what is left, unasked.
    Push,
    /// A message is delivered.
    Deliver(usize),
    /// A message is lost.
    Lose(usize),
}

impl Host {
    fn post(state: &mut State, mail: Mail) {
        state.mail.push(mail);
        state.mail.sort_unstable();
    }

    fn deliver(&self, state: &mut State, mail: Mail) {
        match mail {
            Mail::Ask { age } => {
                state.asked = true;
                let left = if self.mutation == Mutation::AgentAnswersOldTime {
                    state.agent_heard
                } else {
                    state.agent
                };
                Self::post(state, Mail::Left { age: Some(age), left });
            }
            // Counted from before the question was sent: the agent looked later than that.
            Mail::Left { age: Some(age), left } => state.client = state.client.max(left.saturating_sub(age)),
            Mail::Left { age: None, left } => state.client = state.client.max(left),
            Mail::Renew { age } => {
                if let Some(left) = &mut state.session {
                    *left = TTL;
                    Self::post(state, Mail::Renewed { age });
                }
            }
            Mail::Renewed { age } => {
                state.agent = state.agent.max(usable(TTL).saturating_sub(age));
                if self.mutation == Mutation::AgentAnswersOldTime {
                    state.agent_heard = state.agent;
                }
            }
        }
    }

    fn tick(state: &mut State, slow: bool) {
        let host = if slow { SLOW_TICK } else { TICK };
        // What has no time left has ended, at the first moment that allows it.
        state.session = state.session.and_then(|left| left.checked_sub(TICK)).filter(|left| *left > 0);
        state.agent = state.agent.saturating_sub(host);
        state.client = state.client.saturating_sub(host);
        for mail in &mut state.mail {
            match mail {
                Mail::Ask { age }
                | Mail::Left { age: Some(age), .. }
                | Mail::Renew { age }
                | Mail::Renewed { age } => *age = (*age + host).min(TTL),
                Mail::Left { age: None, .. } => {}
            }
        }
        state.mail.sort_unstable();
    }
}

impl Model for Host {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let left = usable(TTL);
        vec![State {
            session: Some(TTL),
            agent: left,
            agent_heard: if self.mutation == Mutation::AgentAnswersOldTime { left } else { 0 },
            asked: false,
            client: left,
            mail: Vec::new(),
            vouched: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([false, true].map(|slow| Action::Tick { slow }));
        let under_way = |kind: fn(&Mail) -> bool| state.mail.iter().any(kind);
        if !under_way(|mail| matches!(mail, Mail::Ask { .. } | Mail::Left { .. })) {
            actions.push(Action::Ask);
            if self.mutation == Mutation::AgentPushesTime {
                actions.push(Action::Push);
            }
        }
        let may_renew = state.asked || self.mutation == Mutation::AgentVouches;
        if may_renew && !under_way(|mail| matches!(mail, Mail::Renew { .. } | Mail::Renewed { .. })) {
            actions.push(Action::Renew);
        }
        actions.extend((0..state.mail.len()).flat_map(|index| [Action::Deliver(index), Action::Lose(index)]));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick { slow } => Self::tick(&mut state, slow),
            Action::Ask => Self::post(&mut state, Mail::Ask { age: 0 }),
            Action::Renew => {
                state.vouched |= !state.asked;
                state.asked = false;
                Self::post(&mut state, Mail::Renew { age: 0 });
            }
            Action::Push => {
                let left = state.agent;
                Self::post(&mut state, Mail::Left { age: None, left });
            }
            Action::Deliver(index) => {
                let mail = state.mail.remove(index);
                self.deliver(&mut state, mail);
            }
            Action::Lose(index) => {
                state.mail.remove(index);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("permits_never_overlap", |_, state: &State| {
                state.client == 0 || state.session.is_some()
            }),
            Property::always("no_lingering_lease", |_, state: &State| !state.vouched),
            Property::sometimes("the session ends", |_, state: &State| state.session.is_none()),
            Property::sometimes("the client is kept alive through the agent", |_, state: &State| {
                state.client > 0
                    && state.client + TICK > state.agent
                    && state.asked
                    && state.session == Some(TTL)
            }),
            Property::sometimes(
                "the client has stopped and the session has not ended",
                |_, state: &State| state.client == 0 && state.session.is_some(),
            ),
        ]
    }
}
