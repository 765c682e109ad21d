//! Commands through a follower travel to the leader in batches, and what each of their callers is told about
//! its own command is true, also when the leader is killed while batches are on their way.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tenure_e2e::{CallFailed, Cluster, Http, until};

/// Callers of the follower, each with one command under way.
const CALLERS: usize = 48;
/// Commands that are answered before the leader is killed, and after it.
const BEFORE: usize = 600;
const AFTER: usize = 600;

/// What a caller was told about a write of a register that nobody else writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Applied,
    NotApplied,
    Unknown,
}

fn write(http: &mut Http, key: &str) -> Told {
    match http.call("PUT", &format!("/v1/registers/{key}"), Some(&json!({"value": "x"}))) {
        Ok(reply) if reply.status == 200 => Told::Applied,
        Ok(reply) => match reply.json()["error"]["effect"].as_str() {
            Some("not_applied") => Told::NotApplied,
            Some("unknown") => Told::Unknown,
            other => panic!("{other:?} is no effect: {}", String::from_utf8_lossy(&reply.body)),
        },
        Err(CallFailed::NotSent(_)) => Told::NotApplied,
        Err(CallFailed::Unknown(_)) => Told::Unknown,
    }
}

fn registers(http: &mut Http) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut path = "/v1/registers?prefix=batch/".to_owned();
    loop {
        let page = http.get(&path).expect(200);
        let found = page["registers"].as_array().expect("a list of registers");
        all.extend(found.iter().map(|one| one["key"].as_str().expect("a key").to_owned()));
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/registers?prefix=batch/&after={next}"),
            None => return all,
        }
    }
}

/// Stops the callers, also when the test fails: they would be waited for without end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_each_caller_of_a_batch_is_told_is_true_although_the_leader_is_killed() {
    let mut cluster = Cluster::start("followers", 3);
    let leader = cluster.leader();
    let follower = cluster.others(leader)[0];
    let address = cluster.node(follower).address();
    let (stop, applied) = (AtomicBool::new(false), AtomicUsize::new(0));
    let limit = Duration::from_secs(60);
    let told: Vec<(String, Told)> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (stop, applied) = (&stop, &applied);
                scope.spawn(move || {
                    let mut http = Http::new(address).with_limit(Duration::from_secs(20));
                    let mut told = Vec::new();
                    for number in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let key = format!("batch/{caller}/{number}");
                        let outcome = write(&mut http, &key);
                        match outcome {
                            Told::Applied => {
                                applied.fetch_add(1, Ordering::Relaxed);
                            }
                            // Without a leader it is refused at once: a short rest keeps the lists short.
                            _ => std::thread::sleep(Duration::from_millis(5)),
                        }
                        told.push((key, outcome));
                    }
                    told
                })
            })
            .collect();
        let stopping = Stop(&stop);
        until("commands are applied", limit, || applied.load(Ordering::Relaxed) >= BEFORE);
        let (commands, messages) = (
            cluster.node(follower).metric("tenure_forward_commands_total"),
            cluster.node(follower).metric("tenure_forward_messages_total"),
        );
        assert!(commands >= BEFORE as f64, "{commands} commands were forwarded");
        assert!(messages < 0.8 * commands, "{messages} messages for {commands} commands are no batches");
        cluster.node_mut(leader).kill();
        let so_far = applied.load(Ordering::Relaxed);
        until("commands are applied by the next leader", limit, || {
            applied.load(Ordering::Relaxed) >= so_far + AFTER
        });
        drop(stopping);
        callers.into_iter().flat_map(|caller| caller.join().expect("a caller")).collect()
    });
    let present = registers(&mut Http::new(address));
    for (key, told) in &told {
        match told {
            Told::Applied => assert!(present.contains(key), "{key} was acknowledged and is lost"),
            Told::NotApplied => {
                assert!(!present.contains(key), "{key} is there, although it was not applied")
            }
            Told::Unknown => {}
        }
    }
    let many = |kind| told.iter().filter(|(_, told)| *told == kind).count();
    let counts = (many(Told::Applied), many(Told::NotApplied), many(Told::Unknown));
    println!("applied, not applied, unknown: {counts:?}");
    assert!(counts.1 + counts.2 > 0, "the leader was killed while nothing was under way: {counts:?}");
    assert!(
        counts.2 <= CALLERS,
        "more are unknown than were under way when the leader was killed: {counts:?}"
    );
}
