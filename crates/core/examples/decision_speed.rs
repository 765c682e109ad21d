//! How long a decision by the policies takes, with a thousand of them:
//! `cargo run --release -p tenure-core --example decision_speed`
//!
//! Three shapes: every policy for another identity; all for one identity, on different prefixes; all for identities
//! that begin alike. Each is asked what it allows and what it does not.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tenure_core::state::{Authority, State};
use tenure_core::{FormatVersion, Identity, Machine, Policy, Verb, Verbs};

const POLICIES: usize = 1_000;
const ROUNDS: usize = 200_000;

fn machine(who: impl Fn(usize) -> String, on: impl Fn(usize) -> String) -> Machine {
    let policy = |number: usize| {
        let policy = Policy {
            who: vec![who(number).parse().expect("an identity")],
            on: vec![on(number).parse().expect("a prefix")],
            may: [Verb::Hold, Verb::Read].into_iter().collect::<Verbs>(),
            ..Policy::default()
        };
        (format!("policy-{number:04}").parse().expect("a name"), Arc::new(policy))
    };
    let authority =
        Authority { enforced: true, policies: (0..POLICIES).map(policy).collect(), ..Authority::default() };
    let state = State { format: FormatVersion::V2, authority, ..State::default() };
    Machine::from_state(state).expect("a sound state")
}

fn measure(what: &str, machine: &Machine, who: impl Fn(usize) -> String, on: impl Fn(usize) -> String) {
    let callers: Vec<(Identity, String)> = (0..POLICIES)
        .map(|number| (Identity::named(who(number).parse().expect("a name")), on(number)))
        .collect();
    for (verb, allowed) in [(Verb::Hold, true), (Verb::Manage, false)] {
        let began = Instant::now();
        for round in 0..ROUNDS {
            let (identity, name) = &callers[round * 7 % POLICIES];
            let verdict = machine.permits(black_box(identity), verb, black_box(name));
            assert_eq!(verdict.is_allowed(), allowed);
        }
        let each = began.elapsed().as_nanos() / ROUNDS as u128;
        println!("{what:<40} {:<8} {each:>6} ns", if allowed { "allowed" } else { "denied" });
    }
}

fn main() {
    let (who, on) = (|n| format!("cred/tenant-{n:04}"), |n| format!("tenant-{n:04}"));
    let name = |n| format!("tenant-{n:04}/jobs/settlement");
    measure("one policy for each of 1,000 identities", &machine(who, on), who, name);
    let one = |_| "cred/tenant".to_owned();
    measure("1,000 policies for one identity", &machine(one, on), one, name);
    let alike = |n: usize| format!("jwt/kubernetes/namespace-{n:04}:*");
    let account = |n: usize| format!("jwt/kubernetes/namespace-{n:04}:worker");
    measure("1,000 policies for identities alike", &machine(alike, on), account, name);
}
