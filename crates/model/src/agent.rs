//! The host agent between a client and the store: it coalesces, it never vouches.
//!
//! Client and agent share the host's clock, which runs at the store's rate or as slow as rho allows. Messages
//! of all four kinds are late or lost; the client's process may stop asking at any time. All times are ages
//! or remainders, so the model has no horizon.

use stateright::{Model, Property};

use crate::Mutation;
use crate::logic::{Beats, SLOW_TICK, TICK, TTL, usable};

/// The model: one host, with one rule taken out or none.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// What is broken.
    pub mutation: Mutation,
}

/// Something under way. Every age counts on the host's clock, from the reading that its sender made before
/// sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
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
    pub agent_received: Beats,
    /// The client asked since the agent's last renewal.
    pub asked: bool,
    /// What the client believes to be left: it may act while there is any.
    pub client: Beats,
    /// Under way, each kind at most once.
    pub messages: Vec<Message>,
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
    fn send(state: &mut State, message: Message) {
        state.messages.push(message);
        state.messages.sort_unstable();
    }

    fn deliver(&self, state: &mut State, message: Message) {
        match message {
            Message::Ask { age } => {
                state.asked = true;
                let left = if self.mutation == Mutation::AgentAnswersOldTime {
                    state.agent_received
                } else {
                    state.agent
                };
                Self::send(state, Message::Left { age: Some(age), left });
            }
            // Counted from before the question was sent: the agent looked later than that.
            Message::Left { age: Some(age), left } => {
                state.client = state.client.max(left.saturating_sub(age))
            }
            Message::Left { age: None, left } => state.client = state.client.max(left),
            Message::Renew { age } => {
                if let Some(left) = &mut state.session {
                    *left = TTL;
                    Self::send(state, Message::Renewed { age });
                }
            }
            Message::Renewed { age } => {
                state.agent = state.agent.max(usable(TTL).saturating_sub(age));
                if self.mutation == Mutation::AgentAnswersOldTime {
                    state.agent_received = state.agent;
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
        for message in &mut state.messages {
            match message {
                Message::Ask { age }
                | Message::Left { age: Some(age), .. }
                | Message::Renew { age }
                | Message::Renewed { age } => *age = (*age + host).min(TTL),
                Message::Left { age: None, .. } => {}
            }
        }
        state.messages.sort_unstable();
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
            agent_received: if self.mutation == Mutation::AgentAnswersOldTime { left } else { 0 },
            asked: false,
            client: left,
            messages: Vec::new(),
            vouched: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([false, true].map(|slow| Action::Tick { slow }));
        let under_way = |kind: fn(&Message) -> bool| state.messages.iter().any(kind);
        if !under_way(|message| matches!(message, Message::Ask { .. } | Message::Left { .. })) {
            actions.push(Action::Ask);
            if self.mutation == Mutation::AgentPushesTime {
                actions.push(Action::Push);
            }
        }
        let may_renew = state.asked || self.mutation == Mutation::AgentVouches;
        if may_renew
            && !under_way(|message| matches!(message, Message::Renew { .. } | Message::Renewed { .. }))
        {
            actions.push(Action::Renew);
        }
        actions.extend(
            (0..state.messages.len()).flat_map(|index| [Action::Deliver(index), Action::Lose(index)]),
        );
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick { slow } => Self::tick(&mut state, slow),
            Action::Ask => Self::send(&mut state, Message::Ask { age: 0 }),
            Action::Renew => {
                state.vouched |= !state.asked;
                state.asked = false;
                Self::send(&mut state, Message::Renew { age: 0 });
            }
            Action::Push => {
                let left = state.agent;
                Self::send(&mut state, Message::Left { age: None, left });
            }
            Action::Deliver(index) => {
                let message = state.messages.remove(index);
                self.deliver(&mut state, message);
            }
            Action::Lose(index) => {
                state.messages.remove(index);
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
