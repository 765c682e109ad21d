//! `kill -9` takes nothing away that was acknowledged (`acknowledged_is_kept`, `tokens_rise`), and what was
//! left of a silent lease is kept over it (`no_lingering_lease`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{Dice, Http, Node, SyncObserver, alone, alongside, scale, skipped_without, until};

const WORKERS: usize = 4;
const RESOURCES: usize = 8;
/// Segments are prepared ahead and snapshots kept until replaced; under this load more would be a leak.
const DATA_BYTES_MAX: u64 = 256 << 20;

/// What a worker knows about one of its resources. Everything that may be true is kept; an answer narrows it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The token held, if an answer said so and nothing since may have ended it.
    held: Option<u64>,
    /// A call about the lease got no answer: the lease may have changed once.
    lease_in_doubt: bool,
    /// The last acknowledged value of the register.
    value: Option<String>,
    /// A write that got no answer.
    value_in_doubt: Option<String>,
}

/// One worker: a session of its own and resources that nobody else touches, so that it knows what to find.
struct Worker {
    http: Http,
    name: usize,
    session: String,
    dice: Dice,
    known: BTreeMap<usize, Known>,
    token_max: u64,
    written: u64,
    acknowledged: u64,
}

impl Worker {
    fn new(address: SocketAddr, name: usize, dice: Dice) -> Self {
        let mut http = Http::new(address);
        let body = json!({"holder": format!("worker-{name}"), "ttl_ms": 3_600_000});
        let session =
            http.post("/v1/sessions", &body).expect(200)["session"].as_str().expect("an id").to_string();
        Self { http, name, session, dice, known: BTreeMap::new(), token_max: 0, written: 0, acknowledged: 0 }
    }

    fn resource(&self, index: usize) -> String {
        format!("crash/{}/{index}", self.name)
    }

    /// Works until told to stop or until the node does not answer.
    fn work(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let index = self.dice.between(0, RESOURCES as u64) as usize;
            let known = self.known.entry(index).or_default().clone();
            let answered = match known.held {
                None => self.acquire(index),
                Some(_) if self.dice.once_in(3) => self.release(index),
                Some(token) => self.write(index, token),
            };
            if !answered {
                return;
            }
            self.acknowledged += 1;
        }
    }

    fn acquire(&mut self, index: usize) -> bool {
        let path = format!("/v1/leases/{}:acquire", self.resource(index));
        let reply = self.http.call("POST", &path, Some(&json!({"session": self.session})));
        let known = self.known.entry(index).or_default();
        match reply {
            Ok(reply) if reply.status == 200 => {
                let token = reply.json()["token"].as_u64().expect("a grant has a token");
                assert!(token > self.token_max, "token {token} after {}", self.token_max);
                self.token_max = token;
                known.held = Some(token);
                true
            }
            Ok(reply) => unsure(reply.status, &mut known.lease_in_doubt),
            Err(_) => {
                known.lease_in_doubt = true;
                false
            }
        }
    }

    fn release(&mut self, index: usize) -> bool {
        let path = format!("/v1/leases/{}:release", self.resource(index));
        let reply = self.http.call("POST", &path, Some(&json!({"session": self.session})));
        let known = self.known.entry(index).or_default();
        match reply {
            Ok(reply) if reply.status == 200 => {
                assert_eq!(reply.json()["released"], true, "it was held");
                known.held = None;
                true
            }
            Ok(reply) => unsure(reply.status, &mut known.lease_in_doubt),
            Err(_) => {
                known.lease_in_doubt = true;
                false
            }
        }
    }

    fn write(&mut self, index: usize, token: u64) -> bool {
        self.written += 1;
        let value = format!("{}-{}", self.name, self.written);
        let body = json!({"value": value, "resource": self.resource(index), "token": token});
        let path = format!("/v1/registers/{}", self.resource(index));
        let reply = self.http.call("PUT", &path, Some(&body));
        let known = self.known.entry(index).or_default();
        match reply {
            Ok(reply) if reply.status == 200 => {
                known.value = Some(value);
                true
            }
            Ok(reply) => {
                let mut in_doubt = false;
                let go_on = unsure(reply.status, &mut in_doubt);
                known.value_in_doubt = in_doubt.then_some(value);
                go_on
            }
            Err(_) => {
                known.value_in_doubt = Some(value);
                false
            }
        }
    }

    /// Everything acknowledged is there; what was in doubt is one of the two, and known from now on.
    fn judge(&mut self) {
        for index in self.known.keys().copied().collect::<Vec<_>>() {
            let resource = self.resource(index);
            let lease = self.http.get(&format!("/v1/leases/{resource}"));
            let held = (lease.status == 200 && lease.json()["state"] == "held")
                .then(|| lease.json()["token"].as_u64().expect("a held lease has a token"));
            let register = self.http.get(&format!("/v1/registers/{resource}"));
            let value = (register.status == 200)
                .then(|| register.json()["value"].as_str().expect("a value is text").to_string());

            let known = self.known.get_mut(&index).expect("listed above");
            match (known.held, held) {
                (before, now) if !known.lease_in_doubt => {
                    assert_eq!(now, before, "{resource}: acknowledged, then lost");
                }
                // An acquire in doubt: not applied, or granted under a token above all that came before.
                (None, Some(now)) => {
                    assert!(now > self.token_max, "{resource}: token {now} after {}", self.token_max)
                }
                // A release in doubt: applied, or the lease is as it was.
                (before, Some(now)) => assert_eq!(Some(now), before, "{resource}: nobody else takes it"),
                (_, None) => {}
            }
            let possible = [known.value.clone(), known.value_in_doubt.clone().or(known.value.clone())];
            assert!(possible.contains(&value), "{resource}: {value:?} is none of {possible:?}");
            self.token_max = self.token_max.max(held.unwrap_or(0));
            *known = Known { held, value, ..Known::default() };
        }
    }
}

/// Answers that say neither yes nor no: the outcome is in doubt only where the server says so.
fn unsure(status: u16, in_doubt: &mut bool) -> bool {
    match status {
        429 | 503 => {}
        504 => *in_doubt = true,
        _ => panic!("a worker's own resource was refused with {status}"),
    }
    false
}

#[test]
fn kill_9_loses_nothing_that_was_acknowledged() {
    let _turn = alone();
    let mut dice = Dice::for_test("kill_9_loses_nothing_that_was_acknowledged");
    let mut node = Node::start("kill");
    let mut workers: Vec<Worker> =
        (0..WORKERS).map(|name| Worker::new(node.address(), name, dice.split())).collect();
    let rounds = scale().kills;
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let moment = Duration::from_micros(dice.between(1_000, 600_000));
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.work(&stop));
            }
            std::thread::sleep(moment);
            node.kill();
            stop.store(true, Ordering::Relaxed);
        });
        node.restart();
        let token_max = workers.iter().map(|worker| worker.token_max).max().unwrap_or(0);
        for worker in &mut workers {
            worker.http = node.http();
            worker.judge();
        }
        // A fresh grant after the restart is above every token acknowledged before it, whoever got it.
        let fresh = format!("/v1/leases/crash/fresh/{round}:acquire");
        let grant = node.http().post(&fresh, &json!({"holder": "fresh", "ttl_ms": 1000})).expect(200);
        assert!(grant["token"].as_u64() > Some(token_max), "{grant} after token {token_max}");
        let bytes = node.scratch().bytes();
        assert!(bytes < DATA_BYTES_MAX, "round {round}: the data directory has grown to {bytes} bytes");
    }
    let acknowledged: u64 = workers.iter().map(|worker| worker.acknowledged).sum();
    println!(
        "{rounds} kills, {acknowledged} acknowledged operations, {} bytes of data",
        node.scratch().bytes()
    );
    assert!(acknowledged > 20 * rounds as u64, "{acknowledged} operations under {rounds} kills prove little");
}

/// What was left of a lease whose holder fell silent survives the node's death: neither the whole TTL again
/// nor an early end.
#[test]
fn what_was_left_of_a_silent_lease_survives_a_restart() {
    let _turn = alone();
    let (ttl, silent) = if scale().full { (20_000, 15_000) } else { (8_000, 6_000) };
    let mut node = Node::start("silent");
    let body = json!({"holder": "silent", "ttl_ms": ttl});
    node.http().post("/v1/leases/silent/one:acquire", &body).expect(200);
    let granted = Instant::now();
    std::thread::sleep(Duration::from_millis(silent));
    node.kill();
    let down = Instant::now();
    node.restart();
    let outage = down.elapsed();

    let mut http = node.http();
    let freed = Duration::from_millis(ttl) + outage + Duration::from_secs(2);
    until("the silent lease is free", freed.saturating_sub(granted.elapsed()), || {
        http.get("/v1/leases/silent/one").expect(200)["state"] == "free"
    });
    // Cluster time stands still while the node is down, so it can only have ended later than its TTL.
    assert!(
        granted.elapsed() > Duration::from_millis(ttl - 50),
        "ended early, after {:?}",
        granted.elapsed()
    );
}

/// Every acknowledgement has a finished sync before it.
#[test]
fn data_is_synced_before_it_is_acknowledged() {
    if skipped_without("strace", "data_is_synced_before_it_is_acknowledged") {
        return;
    }
    let _turn = alone();
    let node = Node::start("sync");
    let mut http = node.http();
    let session =
        http.post("/v1/sessions", &json!({"holder": "a", "ttl_ms": 3_600_000})).expect(200)["session"]
            .as_str()
            .expect("an id")
            .to_string();
    let observer = SyncObserver::attach(&node);
    let mut step = |what: &str, call: &mut dyn FnMut(&mut Http)| {
        let before = observer.syncs();
        call(&mut http);
        let after = observer.syncs();
        assert!(after > before, "{what} was acknowledged without a sync");
    };
    for round in 0..10 {
        let resource = format!("sync/{round}");
        let mut token = Value::Null;
        step("a grant", &mut |http| {
            let path = format!("/v1/leases/{resource}:acquire");
            token = http.post(&path, &json!({"session": session})).expect(200)["token"].clone();
        });
        step("a register write", &mut |http| {
            let body = json!({"value": "x", "resource": resource, "token": token});
            http.put(&format!("/v1/registers/{resource}"), &body).expect(200);
        });
        step("a renewal", &mut |http| {
            http.own(&session, "POST", "/v1/session:renew", None).expect(200);
        });
        step("a release", &mut |http| {
            http.post(&format!("/v1/leases/{resource}:release"), &json!({"session": session})).expect(200);
        });
    }
}

/// SIGTERM drains: the node ends by itself, cleanly, and what it held is there again.
#[test]
fn sigterm_ends_the_node_cleanly() {
    let _turn = alongside();
    let mut node = Node::start("term");
    let grant = node
        .http()
        .post("/v1/leases/term/one:acquire", &json!({"holder": "a", "ttl_ms": 60_000}))
        .expect(200);
    let status = node.terminate(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{}", node.log());
    node.restart();
    let lease = node.http().get("/v1/leases/term/one").expect(200);
    assert_eq!((&lease["state"], &lease["token"]), (&json!("held"), &grant["token"]));
}
