//! The last line: holders that come after each other, a storage of two rows, and writes that land whenever
//! they like.
//!
//! Nothing here asks whether a lease is valid: a holder may have been stopped between its check and its
//! write, and wake up at any time. What must hold is the fence's alone. The fence is `tenure_core`'s own
//! [`Mark`].

use std::hash::{Hash, Hasher};

use stateright::{Model, Property};
use tenure_core::{Mark, Token};

use crate::Mutation;

/// How many holders come after each other.
const HOLDERS: u8 = 3;
/// How many writes each of them sends.
const WRITES: u8 = 2;
/// The rows that one resource protects.
const ROWS: u8 = 2;

/// The model: a resource's storage, with one rule taken out or none.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    /// What is broken.
    pub mutation: Mutation,
}

/// A mark that differs from others by its token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fence(Mark);

impl Hash for Fence {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.token().hash(hasher);
    }
}

/// How far a holder has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Not granted yet.
    Waiting,
    /// Granted; its token is nowhere yet.
    Granted,
    /// Its token is in the fence.
    Installed,
    /// It has read the rows and works.
    Working,
    /// A fence refused it: it is over.
    Fenced,
}

/// Everything at one moment. Holder `i` has token `i + 1`.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    /// The holders.
    pub holders: [Phase; HOLDERS as usize],
    /// What each may still send.
    pub writes: [u8; HOLDERS as usize],
    /// Under way: holder and row, in order.
    pub under_way: Vec<(u8, u8)>,
    /// Judged and not yet stored; only with the mutation that does so in two steps.
    pub judged: Vec<(u8, u8)>,
    /// The fence; the second one only with the mutation that has one for each row.
    pub fences: [Fence; ROWS as usize],
    /// The highest token accepted, as only the checker knows it.
    pub highest: Option<Token>,
    /// The highest token whose holder has read.
    pub read_by: Option<Token>,
    /// A smaller token was accepted after a higher one.
    pub fell: bool,
    /// A predecessor's write went in after its successor had read.
    pub slipped_in: bool,
    /// The last step was a refusal of a stale write.
    pub refused: bool,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next holder is granted the resource.
    Grant,
    /// A holder's barrier reaches the fence.
    Barrier(u8),
    /// A holder reads the rows.
    Read(u8),
    /// A holder sends a write to a row.
    Send(u8, u8),
    /// A write lands.
    Land(usize),
    /// A judged write is stored.
    Store(usize),
}

fn token(holder: u8) -> Token {
    Token::try_from(u64::from(holder) + 1).expect("tokens start at one")
}

impl Storage {
    fn fence_of(&self, row: u8) -> usize {
        if self.mutation == Mutation::FencePerRow { row as usize } else { 0 }
    }

    fn stored(state: &mut State, holder: u8) {
        let token = token(holder);
        state.fell |= state.highest.is_some_and(|highest| token < highest);
        state.slipped_in |= state.read_by.is_some_and(|reader| token < reader);
        state.highest = state.highest.max(Some(token));
    }

    fn land(&self, state: &mut State, index: usize) {
        let (holder, row) = state.under_way.remove(index);
        let fence = &mut state.fences[self.fence_of(row)].0;
        if self.mutation == Mutation::FenceInTwoSteps {
            match fence.token() {
                Some(seen) if token(holder) < seen => state.refused = true,
                _ => state.judged.push((holder, row)),
            }
            return state.judged.sort_unstable();
        }
        match fence.write(token(holder)) {
            Ok(()) => Self::stored(state, holder),
            Err(_) => {
                state.refused = true;
                state.holders[holder as usize] = Phase::Fenced;
            }
        }
    }

    fn barrier(&self, state: &mut State, holder: u8) {
        // With a fence for each row there is one for every row that will ever be: a barrier reaches those it
        // knows of.
        state.holders[holder as usize] = match state.fences[0].0.barrier(token(holder)) {
            Ok(_) => {
                state.highest = state.highest.max(Some(token(holder)));
                state.holders[holder as usize].max(Phase::Installed)
            }
            Err(_) => Phase::Fenced,
        };
    }
}

impl Model for Storage {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            holders: [Phase::Waiting; HOLDERS as usize],
            writes: [WRITES; HOLDERS as usize],
            under_way: Vec::new(),
            judged: Vec::new(),
            fences: Default::default(),
            highest: None,
            read_by: None,
            fell: false,
            slipped_in: false,
            refused: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.holders.contains(&Phase::Waiting) {
            actions.push(Action::Grant);
        }
        for holder in 0..HOLDERS {
            let ready = match state.holders[holder as usize] {
                Phase::Waiting | Phase::Fenced => continue,
                Phase::Granted => self.mutation == Mutation::BarrierSkipped,
                Phase::Installed | Phase::Working => true,
            };
            // A barrier whose answer was lost is sent again.
            actions.push(Action::Barrier(holder));
            if ready && state.holders[holder as usize] != Phase::Working {
                actions.push(Action::Read(holder));
            }
            if state.holders[holder as usize] == Phase::Working && state.writes[holder as usize] > 0 {
                actions.extend((0..ROWS).map(|row| Action::Send(holder, row)));
            }
        }
        actions.extend((0..state.under_way.len()).map(Action::Land));
        actions.extend((0..state.judged.len()).map(Action::Store));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.refused = false;
        match action {
            Action::Grant => {
                *state.holders.iter_mut().find(|phase| **phase == Phase::Waiting)? = Phase::Granted
            }
            Action::Barrier(holder) => self.barrier(&mut state, holder),
            Action::Read(holder) => {
                state.holders[holder as usize] = Phase::Working;
                state.read_by = state.read_by.max(Some(token(holder)));
            }
            Action::Send(holder, row) => {
                state.writes[holder as usize] -= 1;
                state.under_way.push((holder, row));
                state.under_way.sort_unstable();
            }
            Action::Land(index) => self.land(&mut state, index),
            Action::Store(index) => {
                let (holder, row) = state.judged.remove(index);
                let fence = &mut state.fences[self.fence_of(row)].0;
                let seen = fence.token().max(Some(token(holder)));
                *fence = Mark::kept(seen, fence.progress().clone());
                Self::stored(&mut state, holder);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("fence_never_falls", |_, state: &State| !state.fell),
            // What a successor has read stays as it read it, whatever its predecessors still have under way.
            Property::always("reads_are_settled", |_, state: &State| !state.slipped_in),
            Property::sometimes("a stale write is refused", |_, state: &State| state.refused),
            Property::sometimes("every holder has worked", |_, state: &State| {
                state.writes.iter().all(|writes| *writes < WRITES)
            }),
            Property::sometimes("a stale barrier ends its lease", |_, state: &State| {
                state.holders[0] == Phase::Fenced && state.writes[0] == WRITES
            }),
        ]
    }
}
