//! What must never be true in any state of the world, each under the name that it has everywhere; and what
//! must be true in some, or the exploration has proved nothing.

use stateright::Property;

use crate::Mutation;
use crate::logic::Holder;
use crate::stage::Start;
use crate::world::{State, World};

/// Everything that is judged on this stage.
pub(crate) fn properties(world: &World) -> Vec<Property<World>> {
    let mut properties = vec![
        Property::always("permits_never_overlap", |world: &World, state: &State| {
            // Stronger than two permits at once: nobody may act under a lease that has ended, so whoever is
            // granted the resource next may act at once.
            let mut holders = state.holders.iter();
            holders.all(|holder| {
                let token = holder.may_act(world.mutation);
                token.is_none() || token == state.machine.held_by(holder.who)
            })
        }),
        Property::always("one_holder", |_, state: &State| state.machine.holds.len() <= 1),
        Property::always("tokens_rise", |_, state: &State| !state.machine.token_fell),
        Property::always("healthy_holder_keeps", |world: &World, state: &State| {
            let kept = !world.stage.healthy || state.machine.sessions[0].is_some();
            kept && !state.machine.lost_though_renewed && state.holders.iter().all(Holder::counts_in_full)
        }),
        Property::always("waiters_move", |_, state: &State| !state.machine.stuck()),
        Property::always("stamps_never_fall", |_, state: &State| {
            state.proposers.iter().flatten().all(|proposer| !proposer.stamp_fell)
        }),
    ];
    properties.extend(coverage(world));
    properties
}

/// What must be reached on this stage.
fn coverage(world: &World) -> Vec<Property<World>> {
    let stage = &world.stage;
    let sends = &stage.sends;
    let mut reached = Vec::new();
    let mut must = |when: bool, name, condition: fn(&World, &State) -> bool| {
        if when {
            reached.push(Property::sometimes(name, condition));
        }
    };
    let ends = !stage.healthy && stage.start != Start::Alone;
    must(ends, "a session expires", |_, state| state.seen.expired);
    must(ends && sends.renewals > 0, "a renewal moves the deadline", |_, state| state.seen.renewed);
    must(ends && sends.renewals > 0, "a renewal comes too late", |_, state| state.seen.too_late);
    must(stage.start == Start::Held && ends, "a waiter is granted what another lost", |_, state| {
        state.machine.sessions[0].is_none() && state.holders[1].may_act(Mutation::None).is_some()
    });
    must(sends.elections > 1, "two leaders follow the first", |_, state| {
        state.left.elections == 0 && state.proposers[state.leader as usize].is_some()
    });
    must(sends.elections == 1, "a leader follows the first", |_, state| {
        state.left.elections == 0 && state.proposers[state.leader as usize].is_some()
    });
    must(stage.limit == 1, "an entry leaves something behind", |_, state| state.seen.left_behind);
    let outlives = sends.renewals > 0 || sends.opens > 0;
    must(sends.revocations > 0 && outlives, "a lease ends by notice while its session lives", |_, state| {
        state.machine.sessions[0].as_ref().is_some_and(|session| session.ended.is_some())
    });
    must(sends.releases[0] > 0, "a lease is given back and the answer received", |_, state| {
        state.holders[0].lease.is_some_and(|lease| lease.giving_back && lease.ended)
            && !state.holders[0].session_ended
    });
    must(sends.releases[0] > 0, "a release goes unanswered", |_, state| {
        state.holders[0].lease.is_some_and(|lease| lease.giving_back && !lease.ended)
            && state.machine.held_by(0).is_none()
    });
    must(sends.transfers > 0, "a lease is handed over while its session lives", |_, state| {
        state.machine.held_by(1).is_some() && state.machine.sessions[0].is_some()
    });
    must(stage.start == Start::Behind, "a waited grant is used", |_, state| {
        state.holders[0].may_act(Mutation::None).is_some()
    });
    must(sends.opens_other > 0, "K shrinks", |_, state| state.machine.k() == 2);
    must(stage.healthy, "a healthy holder outlives a stall longer than its TTL", |_, state| {
        state.seen.outlived
    });
    reached
}
