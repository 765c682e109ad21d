//! How a model is explored and judged, the same way for all of them.
#![allow(dead_code)] // each test program uses its part

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// Explores every state of a sound model. Nothing that must never be true may be found, and everything that
/// must be reachable must have been reached: an exploration in which nothing happened proves nothing.
pub fn sound<M>(name: &str, model: M) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let from = Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    println!("{name}: {states} states, {steps} transitions, {depth} deep, in {:.1?}", from.elapsed());
    let properties = checker.model().properties();
    let (failures, coverage): (Vec<_>, Vec<_>) =
        properties.iter().partition(|property| property.expectation.discovery_is_failure());
    assert!(
        !failures.is_empty() && !coverage.is_empty(),
        "{name}: a model without properties judges nothing"
    );
    for property in failures {
        if let Some(path) = checker.discovery(property.name) {
            panic!("{name}: {} is violated by {:#?}", property.name, path.into_actions());
        }
    }
    for property in coverage {
        assert!(checker.discovery(property.name).is_some(), "{name}: never reached: {}", property.name);
    }
    states
}

/// Explores a mutated model until the expected rule is seen to break, and asserts that it is.
pub fn caught<M>(name: &str, model: M, expected: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let from = Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyOf([expected].into())).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(expected) else {
        panic!("{name}: {expected} is not violated in any of {states} states");
    };
    let actions = path.into_actions();
    println!("{name}: {expected} after {} steps, {states} states, {:.1?}", actions.len(), from.elapsed());
    actions.iter().for_each(|action| println!("    {action:?}"));
}
