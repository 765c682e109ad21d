//! Every state of every stage: nothing that must never happen, and everything that must be possible. The
//! second half drives the shipped logic through the same states.

mod common;

use common::sound;
use tenure_model::agent::Host;
use tenure_model::fences::Storage;
use tenure_model::{Mutation, Stage, World};

/// One test for each stage, so that they run beside each other and a failure names its stage.
macro_rules! stages {
    ($($name:ident: $stage:ident,)*) => {
        mod explored {
            use super::*;
            $(#[test] fn $name() { sound(Stage::$stage.name, World::sound(Stage::$stage)); })*
        }

        mod shipped {
            use super::*;
            $(#[test] fn $name() { shipped(Stage::$stage); })*
        }

        #[test]
        fn every_stage_is_explored() {
            let here = [$(Stage::$stage.name),*];
            assert_eq!(Stage::ALL.map(|stage| stage.name), here);
        }
    };
}

stages! {
    drift: DRIFT,
    time: TIME,
    repeated: REPEATED,
    opening: OPENING,
    opening_cut: OPENING_CUT,
    cut: CUT,
    failover: FAILOVER,
    failover_cut: FAILOVER_CUT,
    deposed: DEPOSED,
    shrink: SHRINK,
    notice: NOTICE,
    reopened: REOPENED,
    transfer: TRANSFER,
    acquire: ACQUIRE,
    waited: WAITED,
    healthy: HEALTHY,
}

#[test]
fn fences() {
    sound("fences", Storage { mutation: Mutation::None });
}

#[test]
fn agent() {
    sound("agent", Host { mutation: Mutation::None });
}

/// The same with `tenure_core`'s own proposer, machine and holders alongside. The largest stages take minutes
/// that way, and wait for `TENURE_TEST_FULL`; each of them differs from a smaller one only in its numbers.
fn shipped(stage: Stage) {
    let large = ["repeated", "opening", "cut", "failover, cut", "deposed", "notice"];
    if large.contains(&stage.name) && std::env::var_os("TENURE_TEST_FULL").is_none() {
        return;
    }
    sound(&format!("{} (shipped)", stage.name), World::twinned(stage));
}
