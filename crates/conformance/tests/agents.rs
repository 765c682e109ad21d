//! Black-box scenarios: an SDK's agent program against a real cluster, stopped, cut off and resumed as it
//! happens to programs. What it reports is judged by the checker. Every scenario runs for every SDK whose
//! toolchain is installed; the others are reported as skipped. Six of them run always, the rest with
//! `TENURE_TEST_FULL=1`.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_conformance::{Agent, Recorder, Sdk, settled};
use tenure_e2e::{Cluster, Node, Proxy, alone, scale, until};

const TTL_MS: u64 = 2_000;
const SOON: Duration = Duration::from_secs(30);

fn for_each_sdk(scenario: impl Fn(&Sdk)) {
    let _turn = alone();
    let (sdks, missing) = Sdk::installed();
    for name in missing {
        eprintln!("\nskipped: the agent program of {name} needs its toolchain");
    }
    sdks.iter().for_each(scenario);
}

/// The scenarios beyond the six of every run.
fn for_each_sdk_in_full(scenario: impl Fn(&Sdk)) {
    if scale().full {
        for_each_sdk(scenario);
    }
}

fn start(sdk: &Sdk, name: &str, node: &Node) -> Agent {
    Agent::start(sdk, name, &[node.endpoint()])
}

/// Opens a session `s` with the usual TTL and acquires `resource` as lease `l`; the whole answer.
fn hold(agent: &Agent, resource: &str, wait: Value) -> Value {
    agent.ask(json!({ "do": "open", "session": "s", "ttl_ms": TTL_MS, "holder": agent.name() }));
    agent.answer(queue(agent, resource, wait))
}

fn queue(agent: &Agent, resource: &str, wait: Value) -> u64 {
    agent
        .tell(json!({ "do": "acquire", "session": "s", "lease": "l", "resource": resource, "wait_ms": wait }))
}

fn work(agent: &Agent, key: &str) -> u64 {
    agent.tell(
        json!({ "do": "work", "lease": "l", "key": key, "value": agent.name(), "every_ms": 5, "hold_ms": 2 }),
    )
}

fn worked(agent: &Agent) -> usize {
    agent.events().iter().filter(|event| event["event"] == "worked" && event["revision"].is_u64()).count()
}

fn waiting(node: &Node, resource: &str) -> u64 {
    let found = node.http().get(&format!("/v1/leases/{resource}")).json();
    found["waiting"].as_u64().unwrap_or(0)
}

fn token(answer: &Value) -> u64 {
    answer["ok"]["token"].as_u64().unwrap_or_else(|| panic!("no grant: {answer}"))
}

#[test]
fn stopped_while_holding() {
    for_each_sdk(|sdk| {
        let node = Node::start("stopped-holder");
        let (a, b) = (start(sdk, "a", &node), start(sdk, "b", &node));
        let mut recorder = Recorder::new();
        let first = hold(&a, "r", Value::Null);
        recorder.granted(1, "r", &first);
        work(&a, "k");
        until("a works", SOON, || worked(&a) > 5);
        b.ask(json!({ "do": "open", "session": "s", "ttl_ms": TTL_MS }));
        let queued = queue(&b, "r", json!("forever"));
        until("b is queued", SOON, || waiting(&node, "r") == 1);
        a.pause();
        let second = b.answer(queued);
        recorder.granted(2, "r", &second);
        assert!(token(&second) > token(&first));
        work(&b, "k");
        until("b works", SOON, || worked(&b) > 5);
        a.resume();
        // Whatever it does now, it learns that it has stopped in time.
        let refused = a.until_event("it is refused", |event| {
            event["event"] == "refused" && event["t"].as_u64() > second["t"].as_u64()
        });
        assert!(["jeopardy", "ended"].contains(&refused["reason"].as_str().unwrap_or_default()), "{refused}");
        until("its lease has ended", SOON, || {
            a.ask(json!({ "do": "state", "lease": "l" }))["state"] == "ended"
        });
        b.ask(json!({ "do": "stop_work", "lease": "l" }));
        recorder.worked(1, Some("k"), &a.events());
        recorder.worked(2, Some("k"), &b.events());
        recorder.assert_sound();
    });
}

#[test]
fn stopped_between_check_and_send() {
    for_each_sdk(|sdk| {
        let node = Node::start("stopped-sender");
        let (a, b) = (start(sdk, "a", &node), start(sdk, "b", &node));
        hold(&a, "r", Value::Null);
        let late = a.tell(json!({ "do": "put", "lease": "l", "key": "k", "value": "late", "stop": true }));
        a.until_event("it has checked", |event| event["event"] == "stopping");
        a.wait_stopped();
        let second = hold(&b, "r", json!("forever"));
        let wrote = b.ask(json!({ "do": "put", "lease": "l", "key": "k", "value": "b" }));
        assert_eq!(wrote["token"].as_u64(), Some(token(&second)));
        a.resume();
        let error = settled(a.answer(late)).expect_err("a stale write must be refused");
        let code = error.word("code");
        assert!(["stale_token", "lease_ended", "unknown_session"].contains(&code), "{:?}", error.0);
        assert_eq!(b.ask(json!({ "do": "get", "key": "k" }))["value"], "b");
    });
}

#[test]
fn an_answer_is_lost_after_the_command_was_applied() {
    for_each_sdk(|sdk| {
        let node = Node::start("lost-answer");
        let proxy = Proxy::to(node.address());
        let a = Agent::start(sdk, "a", &[proxy.address().to_string()]);
        a.ask(json!({ "do": "open", "session": "s", "ttl_ms": 10_000 }));
        proxy.swallow_answers(true);
        let asked = queue(&a, "r", Value::Null);
        until("it was applied", SOON, || node.http().get("/v1/leases/r").json()["state"] == "held");
        proxy.swallow_answers(false);
        let answer = a.answer(asked);
        let found = node.http().get("/v1/leases/r").json();
        assert_eq!(
            (token(&answer), 1),
            (found["token"].as_u64().unwrap(), found["generation"].as_u64().unwrap())
        );
        // The same for a release: from its sending on there is no permit, and it is done once.
        proxy.swallow_answers(true);
        let releasing = a.tell(json!({ "do": "release", "lease": "l" }));
        until("it was applied", SOON, || node.http().get("/v1/leases/r").json()["state"] == "free");
        let refused = a.try_ask(json!({ "do": "permit", "lease": "l", "permit": "p" }));
        let refused = refused.expect_err("there is no permit from the sending on");
        assert!(["giving_back", "ended"].contains(&refused.word("reason")), "{:?}", refused.0);
        proxy.swallow_answers(false);
        assert_eq!(settled(a.answer(releasing)).expect("released")["end"], "released");
    });
}

#[test]
fn the_leader_is_killed() {
    for_each_sdk(|sdk| {
        let mut cluster = Cluster::start("agent-leader", 3);
        let endpoints: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
        let a = Agent::start(sdk, "a", &endpoints);
        let mut recorder = Recorder::new();
        a.ask(json!({ "do": "open", "session": "s", "ttl_ms": 10_000 }));
        let first = a.answer(queue(&a, "r", Value::Null));
        recorder.granted(1, "r", &first);
        work(&a, "k");
        until("it works", SOON, || worked(&a) > 3);
        let leader = cluster.leader();
        cluster.node_mut(leader).kill();
        let before = worked(&a);
        until("it goes on under the new leader", SOON, || worked(&a) > before + 5);
        let state = a.ask(json!({ "do": "state", "lease": "l" }));
        assert_ne!(state["state"], "ended", "{state}");
        a.ask(json!({ "do": "stop_work", "lease": "l" }));
        recorder.worked(1, Some("k"), &a.events());
        recorder.assert_sound();
    });
}

#[test]
fn the_store_wants_the_lease_back() {
    for_each_sdk(|sdk| {
        let node = Node::start("agent-notice");
        let (a, b) = (start(sdk, "a", &node), start(sdk, "b", &node));
        let mut recorder = Recorder::new();
        recorder.granted(1, "r", &hold(&a, "r", Value::Null));
        work(&a, "k");
        b.ask(json!({ "do": "open", "session": "s", "ttl_ms": TTL_MS }));
        let queued = queue(&b, "r", json!("forever"));
        until("b is queued", SOON, || waiting(&node, "r") == 1);
        node.http().post("/v1/leases/r:revoke", &json!({})).expect(200);
        a.until_event("it is told", |event| event["event"] == "status" && event["notice"] == "revoked");
        // It goes on working until its deadline as it stood, although its session is renewed.
        let second = b.answer(queued);
        recorder.granted(2, "r", &second);
        work(&b, "k");
        until("b works", SOON, || worked(&b) > 3);
        until("a knows how it ended", SOON, || {
            a.ask(json!({ "do": "state", "lease": "l" }))["state"] == "ended"
        });
        let end = a.ask(json!({ "do": "state", "lease": "l" }));
        assert_eq!((end["end"].as_str(), end["why"].as_str()), (Some("expired"), Some("revoked")), "{end}");
        b.ask(json!({ "do": "stop_work", "lease": "l" }));
        recorder.worked(1, Some("k"), &a.events());
        recorder.worked(2, Some("k"), &b.events());
        recorder.assert_sound();
    });
}

#[test]
fn drained_and_transferred_with_a_permit_out() {
    for_each_sdk(|sdk| {
        let node = Node::start("agent-drain");
        let (a, b) = (start(sdk, "a", &node), start(sdk, "b", &node));
        let mut recorder = Recorder::new();
        recorder.granted(1, "r", &hold(&a, "r", Value::Null));
        let mut report = a.ask(json!({ "do": "permit", "lease": "l", "permit": "p" }));
        let still =
            a.try_ask(json!({ "do": "drain", "lease": "l", "within_ms": 200 })).expect_err("a permit is out");
        assert_eq!(
            (still.word("effect"), still.0["out"].as_u64()),
            ("not_applied", Some(1)),
            "{:?}",
            still.0
        );
        let opened = b.ask(json!({ "do": "open", "session": "s", "ttl_ms": TTL_MS }));
        let queued = queue(&b, "r", json!("forever"));
        until("b is queued", SOON, || waiting(&node, "r") == 1);
        let moving = a.tell(json!({ "do": "transfer", "lease": "l", "to": opened["session_number"] }));
        until("the intake is closed", SOON, || {
            let asked = a.try_ask(json!({ "do": "permit", "lease": "l", "permit": "q" }));
            if asked.is_ok() {
                a.ask(json!({ "do": "done", "permit": "q" }));
            }
            asked.is_err_and(|error| error.word("reason") == "draining")
        });
        assert!(!a.is_answered(moving) && !b.is_answered(queued), "nothing moves while a permit is out");
        report["done"] = a.ask(json!({ "do": "done", "permit": "p" }))["at"].clone();
        recorder.permit(1, &report);
        settled(a.answer(moving)).expect("it is handed over");
        let second = b.answer(queued);
        recorder.granted(2, "r", &second);
        recorder.permit(2, &b.ask(json!({ "do": "permit", "lease": "l", "permit": "p" })));
        recorder.assert_sound();
    });
}

#[test]
fn stopped_in_the_queue() {
    for_each_sdk_in_full(|sdk| {
        let node = Node::start("stopped-waiter");
        let agents: Vec<Agent> = ["a", "b", "c"].iter().map(|name| start(sdk, name, &node)).collect();
        let [a, b, c] = &agents[..] else { unreachable!("there are three") };
        hold(a, "r", Value::Null);
        b.ask(json!({ "do": "open", "session": "s", "ttl_ms": TTL_MS }));
        let second = queue(b, "r", json!("forever"));
        until("b is queued", SOON, || waiting(&node, "r") == 1);
        c.ask(json!({ "do": "open", "session": "s", "ttl_ms": TTL_MS }));
        let third = queue(c, "r", json!("forever"));
        until("c is queued", SOON, || waiting(&node, "r") == 2);
        b.pause();
        until("b's session has ended", SOON, || waiting(&node, "r") == 1);
        a.ask(json!({ "do": "release", "lease": "l" }));
        token(&c.answer(third));
        b.resume();
        let error = settled(b.answer(second)).expect_err("its session has ended");
        assert_eq!(error.word("code"), "unknown_session", "{:?}", error.0);
    });
}

#[test]
fn the_node_that_it_speaks_to_stops() {
    for_each_sdk_in_full(|sdk| {
        let cluster = Cluster::start("agent-silent", 3);
        let leader = cluster.leader();
        // Followers only, so that whichever is stopped the cluster goes on.
        let followers = cluster.others(leader);
        let endpoints: Vec<String> =
            followers.iter().map(|number| cluster.node(*number).endpoint()).collect();
        let a = Agent::start(sdk, "a", &endpoints);
        a.ask(json!({ "do": "open", "session": "s", "ttl_ms": 4_000 }));
        token(&a.answer(queue(&a, "r", Value::Null)));
        work(&a, "k");
        until("it works", SOON, || worked(&a) > 3);
        let used =
            a.ask(json!({ "do": "endpoints" }))["endpoints"][0].as_str().unwrap_or_default().to_owned();
        let victim =
            (1..=3).find(|number| cluster.node(*number).endpoint() == used).expect("it is one of them");
        if victim != leader {
            cluster.node(victim).pause();
            let before = worked(&a);
            until("it goes on elsewhere", SOON, || worked(&a) > before + 5);
            cluster.node(victim).resume();
        }
        assert_ne!(a.ask(json!({ "do": "state", "lease": "l" }))["state"], "ended");
    });
}

#[test]
fn the_majority_is_gone_for_longer_than_the_ttl() {
    for_each_sdk_in_full(|sdk| {
        let mut cluster = Cluster::start("agent-quorum", 3);
        let endpoints: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
        let a = Agent::start(sdk, "a", &endpoints);
        let mut recorder = Recorder::new();
        recorder.granted(1, "r", &hold(&a, "r", Value::Null));
        work(&a, "k");
        until("it works", SOON, || worked(&a) > 3);
        cluster.node_mut(1).kill();
        cluster.node_mut(2).kill();
        a.until_event("its deadline passes", |event| {
            event["event"] == "status" && event["jeopardy"] == "past_deadline"
        });
        let refused =
            a.try_ask(json!({ "do": "permit", "lease": "l", "permit": "p" })).expect_err("no permit");
        assert_eq!(refused.word("reason"), "jeopardy", "{:?}", refused.0);
        cluster.node_mut(1).restart();
        // Server downtime does not count against TTLs: the lease is still there, and is held again.
        until("the store says whose it is", SOON, || {
            let state = a.ask(json!({ "do": "state", "lease": "l" }));
            state["state"] == "held" || state["state"] == "ended"
        });
        a.ask(json!({ "do": "stop_work", "lease": "l" }));
        recorder.worked(1, Some("k"), &a.events());
        recorder.assert_sound();
    });
}

#[test]
fn answers_are_slow() {
    for_each_sdk_in_full(|sdk| {
        let node = Node::start("slow-answers");
        let proxy = Proxy::to(node.address());
        let a = Agent::start(sdk, "a", &[proxy.address().to_string()]);
        a.ask(json!({ "do": "open", "session": "s", "ttl_ms": 6_000 }));
        token(&a.answer(queue(&a, "r", Value::Null)));
        proxy.cut(true);
        until("it is in jeopardy", SOON, || {
            a.ask(json!({ "do": "state", "lease": "l" }))["state"] == "jeopardy"
        });
        a.ask(json!({ "do": "permit", "lease": "l", "permit": "p" }));
        a.ask(json!({ "do": "done", "permit": "p" }));
        proxy.cut(false);
        until("it is held again", SOON, || a.ask(json!({ "do": "state", "lease": "l" }))["state"] == "held");
    });
}

#[test]
fn a_fork_holds_nothing() {
    for_each_sdk_in_full(|sdk| {
        let node = Node::start("agent-fork");
        let a = start(sdk, "a", &node);
        hold(&a, "r", Value::Null);
        // SDKs of languages that do not fork have no such command.
        match a.try_ask(json!({ "do": "fork", "lease": "l" })) {
            Ok(forked) => assert_eq!(forked["answer"], "forked"),
            Err(error) => assert_eq!(error.word("kind"), "no_such_command", "{:?}", error.0),
        }
        a.ask(json!({ "do": "permit", "lease": "l", "permit": "p" }));
    });
}

#[test]
fn renewals_survive_an_application_that_is_busy_for_five_ttls() {
    for_each_sdk_in_full(|sdk| {
        let node = Node::start("agent-busy");
        let a = start(sdk, "a", &node);
        hold(&a, "r", Value::Null);
        a.ask(json!({ "do": "busy", "ms": 5 * TTL_MS }));
        let state = a.ask(json!({ "do": "state", "lease": "l" }));
        assert_eq!(state["state"], "held", "{state}");
    });
}

/// Several agents contend for one resource and are stopped at random moments.
#[test]
fn contention_under_pauses() {
    for_each_sdk_in_full(|sdk| {
        let node = Node::start("agent-contention");
        let agents: Vec<Agent> = (0..3).map(|number| start(sdk, &format!("p{number}"), &node)).collect();
        let mut recorder = Recorder::new();
        for round in 0..6_usize {
            let (holder, next) = (&agents[round % 3], &agents[(round + 1) % 3]);
            let lease = format!("l{round}");
            let open = |agent: &Agent, name: &str| {
                agent.ask(json!({ "do": "open", "session": name, "ttl_ms": 1_000 }));
            };
            let acquire = |agent: &Agent, session: &str, lease: &str| {
                let command = json!({ "do": "acquire", "session": session, "lease": lease, "resource": "r", "wait_ms": "forever" });
                agent.tell(command)
            };
            open(holder, &lease);
            recorder.granted(round as u32 % 3, "r", &holder.answer(acquire(holder, &lease, &lease)));
            holder.tell(json!({ "do": "work", "lease": lease, "key": "k", "value": lease, "every_ms": 3, "hold_ms": 1 }));
            let before = worked(holder);
            until("it works", SOON, || worked(holder) > before + 3);
            let after = format!("{lease}n");
            open(next, &after);
            let queued = acquire(next, &after, &after);
            until("the next is queued", SOON, || waiting(&node, "r") == 1);
            holder.pause();
            let answer = next.answer(queued);
            recorder.granted((round as u32 + 1) % 3, "r", &answer);
            let permit = format!("{lease}p");
            let mut report = next.ask(json!({ "do": "permit", "lease": after, "permit": permit }));
            holder.resume();
            report["done"] = next.ask(json!({ "do": "done", "permit": permit }))["at"].clone();
            recorder.permit((round as u32 + 1) % 3, &report);
            next.ask(json!({ "do": "close", "session": after }));
            holder.ask(json!({ "do": "stop_work", "lease": lease }));
        }
        for (process, agent) in agents.iter().enumerate() {
            recorder.worked(process as u32, Some("k"), &agent.events());
        }
        assert!(recorder.permits() > 30, "{} permits", recorder.permits());
        recorder.assert_sound();
    });
}
