//! A node's files are damaged while it is down, and the only node that could have known better was down before: it refuses
//! to start and says how to rejoin, or everything that was acknowledged is there (`acknowledged_is_kept`).
//!
//! The binary we ship, over HTTP. `cargo xtask damage --serve --rounds 100` runs many rounds and counts them by kind.

#[path = "../../replica/tests/damages/mod.rs"]
mod damages;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use damages::{Dice, Killed, Outcome, damage_many, keep_a_copy};
use serde_json::json;
use tenure_e2e::{Cluster, Http, alone, until};

/// Far more than anything here takes; a round that runs into it has failed.
const LONG: Duration = Duration::from_secs(60);
/// A node that was refused says what to do.
const REJOIN: &str = "add it again under a new number with an empty data directory";
/// More than a log keeps: a snapshot is due after 64 MiB.
const BULK_WRITES: usize = 1_200;
const BULK_BYTES: usize = 60_000;

/// Three nodes, and the registers whose values were acknowledged.
struct Servers {
    cluster: Cluster,
    acknowledged: BTreeMap<String, String>,
    older: Vec<(PathBuf, Vec<u8>)>,
}

impl Killed for Servers {
    fn make(dice: &mut Dice) -> Servers {
        let cluster = Cluster::start("damage", 3);
        let mut servers = Servers { cluster, acknowledged: BTreeMap::new(), older: Vec::new() };
        servers.write_some(20 + dice.below(60));
        servers.cluster.node_mut(3).kill();
        if dice.below(2) == 0 {
            for number in 0..BULK_WRITES {
                let value = format!("{number} {}", "x".repeat(BULK_BYTES));
                servers.write(format!("bulk/{}", number % 50), value);
            }
            until("node 2 has a snapshot", LONG, || {
                let folder = servers.directory(2).join("snapshots");
                fs::read_dir(folder).is_ok_and(|mut found| found.next().is_some())
            });
        }
        for _ in 0..3 {
            servers.write_some(5 + dice.below(60));
            keep_a_copy(&servers.directory(2), &mut servers.older);
        }
        servers.write_some(1 + dice.below(30));
        for node in if dice.below(2) == 0 { [1, 2] } else { [2, 1] } {
            servers.cluster.node_mut(node).kill();
        }
        servers
    }

    fn directory(&self, node: u64) -> PathBuf {
        self.cluster.node(node as usize).data_path()
    }

    fn older(&self) -> &[(PathBuf, Vec<u8>)] {
        &self.older
    }

    fn judge(&mut self) -> Outcome {
        let said_before = self.cluster.node(2).log().len();
        for node in [2, 3] {
            self.cluster.node_mut(node).spawn();
        }
        let outcome = self.outcome(said_before);
        for node in [2, 3] {
            self.cluster.node_mut(node).kill();
        }
        outcome
    }
}

impl Servers {
    /// Writes so many registers more, each once.
    fn write_some(&mut self, count: usize) {
        for _ in 0..count {
            let number = self.acknowledged.len();
            self.write(format!("damage/{number}"), number.to_string());
        }
    }

    /// Writes until it is acknowledged: nodes 1 and 2 are up, and the same value again changes nothing.
    fn write(&mut self, register: String, value: String) {
        let body = json!({ "value": value });
        let mut callers =
            [1, 2].map(|node| self.cluster.node(node).http().with_limit(Duration::from_secs(5)));
        let mut attempt = 0;
        until("a write is acknowledged", LONG, || {
            attempt += 1;
            let written = callers[attempt % 2].call("PUT", &format!("/v1/registers/{register}"), Some(&body));
            written.is_ok_and(|reply| reply.status == 200)
        });
        self.acknowledged.insert(register, value);
    }

    /// Nodes 2 and 3 were started. Node 2 gives up, or one of them knows everything, or not.
    fn outcome(&mut self, said_before: usize) -> Outcome {
        let began = Instant::now();
        let mut callers =
            [2, 3].map(|node| self.cluster.node(node).http().with_limit(Duration::from_secs(2)));
        loop {
            if !self.cluster.node_mut(2).is_alive() {
                let said = self.cluster.node(2).log()[said_before..].to_owned();
                return match said.contains(REJOIN) {
                    true => Outcome::Refused(said),
                    false => Outcome::Lost(format!("node 2 ended and did not say what to do: {said}")),
                };
            }
            assert!(self.cluster.node_mut(3).is_alive(), "node 3 is sound:\n{}", self.cluster.node(3).log());
            for http in &mut callers {
                let Some(missing) = missing(http, &self.acknowledged) else { continue };
                return match missing.is_empty() {
                    true => Outcome::AllPresent,
                    false => Outcome::Lost(format!("{} of {}", missing.len(), self.acknowledged.len())),
                };
            }
            if began.elapsed() > LONG {
                return Outcome::Lost("nothing is served, and nobody says why".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The registers that do not have the value that was acknowledged; nothing if the node cannot say.
fn missing<'a>(http: &mut Http, acknowledged: &'a BTreeMap<String, String>) -> Option<Vec<&'a String>> {
    let mut missing = Vec::new();
    for (register, value) in acknowledged {
        let reply = http.call("GET", &format!("/v1/registers/{register}"), None).ok()?;
        match reply.status {
            200 if reply.json()["value"] == value.as_str() => {}
            200 | 404 => missing.push(register),
            _ => return None,
        }
    }
    Some(missing)
}

#[test]
fn a_damaged_server_is_refused_or_has_everything() {
    let _turn = alone();
    damage_many::<Servers>(6);
}
