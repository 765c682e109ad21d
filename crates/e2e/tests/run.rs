//! `tenure run` and `tenure elect` with real trees of processes: nothing of a tree may be alive when the lease is another's,
//! whichever single process is stopped or killed, and a death that was seen costs the successor milliseconds.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_e2e::{Node, Scratch, alone, alongside, run_tenure, scale, tenure_binary, until, until_some};

/// How long anything may take that is not measured. Generous: a loaded machine with two cores is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// The environment variable by which members of a tree are recognised, however they were started.
const MARK: &str = "TENURE_E2E_MARK";

/// One `tenure run` or `tenure elect`. Killed when dropped; what it said is shown if the test failed.
struct Run {
    child: Child,
    log: PathBuf,
    name: String,
}

impl Run {
    /// Starts it with these arguments before `--` and this shell script after it.
    fn start(node: &Node, scratch: &Scratch, name: &str, arguments: &[&str], script: &str) -> Run {
        let log = scratch.path().join(format!("{name}.log"));
        let file = fs::File::create(&log).expect("a log can be written");
        let mut command = Command::new(tenure_binary());
        command.args(arguments).args(["--", "sh", "-c", script]).env(MARK, name).current_dir(scratch.path());
        command.env("TENURE_ENDPOINTS", node.endpoint()).stdin(Stdio::null());
        command.stdout(file.try_clone().expect("a file handle can be copied")).stderr(file);
        Run { child: command.spawn().expect("tenure can be started"), log, name: name.to_owned() }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// The guardian: the child of `run` that says so.
    fn guardian(&self) -> i32 {
        let own = self.pid();
        until_some("there is a guardian", PATIENCE, || {
            processes()
                .into_iter()
                .find(|pid| parent_of(*pid) == Some(own) && words_of(*pid).contains("@guardian"))
        })
    }

    /// Every process that carries the mark, but for `run` and its guardian.
    fn members(&self, guardian: i32) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.name);
        let marked = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
        };
        processes().into_iter().filter(|pid| ![self.pid(), guardian].contains(pid)).filter(marked).collect()
    }

    /// Waits until it has ended.
    fn wait(&mut self) -> ExitStatus {
        until_some("it ends", PATIENCE, || self.child.try_wait().expect("a child can be asked"))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}\n---", self.name, self.log());
        }
    }
}

fn send(pid: i32, signal: Signal) {
    // It may be gone, which is what most signals here are for.
    let _ = kill_process(Pid::from_raw(pid).expect("a process's number is not zero"), signal);
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("there is a /proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn words_of(pid: i32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ")
}

fn wait_for(path: &Path) {
    until(&format!("{} is there", path.display()), PATIENCE, || path.exists());
}

fn wait_for_waiter(node: &Node, resource: &str) {
    let mut http = node.http();
    until("a successor is queued", PATIENCE, || {
        let shown = http.get(&format!("/v1/leases/{resource}"));
        shown.status == 200 && shown.json()["waiters"].as_array().is_some_and(|waiters| !waiters.is_empty())
    });
}

fn history(node: &Node, resource: &str) -> String {
    node.http().get(&format!("/v1/history/{resource}")).expect(200).to_string()
}

#[test]
fn the_command_knows_what_it_holds_and_its_code_is_passed_on() {
    let _turn = alongside();
    let node = Node::start("run-codes");
    let run = |arguments: &[&str]| -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = run_tenure(&node.endpoint(), arguments);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (status.code(), text(stdout), text(stderr))
    };

    let (code, said, talk) = run(&["run", "jobs/env", "--", "sh", "-c", "env; cat"]);
    assert_eq!(code, Some(0), "{talk}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.contains(&"TENURE_RESOURCE=jobs/env"), "{said}");
    assert!(lines.contains(&"TENURE_TOKEN=1"), "{said}");
    assert!(lines.contains(&format!("TENURE_ENDPOINTS={}", node.endpoint()).as_str()), "{said}");
    assert!(!said.contains("TENURE_SESSION"), "whoever has it can end the session: {said}");
    let asked = ["run", "jobs/env", "--pass-session", "--", "sh", "-c", "env; cat"];
    let (_, said, _) = run(&asked);
    assert!(said.lines().any(|line| line.starts_with("TENURE_SESSION=") && line.len() > 30), "{said}");
    assert!(talk.contains("token 1") && talk.contains("contained by"), "it says how: {talk}");
    assert!(history(&node, "jobs/env").contains("released"), "{}", history(&node, "jobs/env"));

    for (script, expected) in [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        for contain in ["cgroup", "namespace", "subreaper"] {
            // A shell that is the first process of a namespace's second place dies of its own signals, as anywhere else.
            let (code, _, talk) = run(&["run", "jobs/code", "--contain", contain, "--", "sh", "-c", script]);
            assert_eq!(code, Some(expected), "{script} in {contain}: {talk}");
        }
    }
    let (code, _, talk) = run(&["run", "jobs/code", "--", "/does/not/exist"]);
    assert_eq!(code, Some(127), "{talk}");
    assert!(talk.contains("/does/not/exist"), "{talk}");
    assert_eq!(run(&["run", "jobs/code"]).0, Some(102), "wrong usage");
    assert_eq!(run(&["run", "jobs/code", "--ttl", "1ms", "--", "true"]).0, Some(102), "no such TTL");

    let (code, _, talk) = run(&["acquire", "jobs/code", "--holder", "somebody", "--ttl", "60s"]);
    assert_eq!(code, Some(0), "{talk}");
    let (code, _, talk) = run(&["run", "jobs/code", "--no-wait", "--", "true"]);
    assert_eq!(code, Some(103), "held by another: {talk}");
    assert!(talk.contains("somebody"), "{talk}");
    assert_eq!(run(&["run", "jobs/code", "--wait", "100ms", "--", "true"]).0, Some(103), "waited in vain");
    let nowhere = run_tenure("127.0.0.1:1", &["run", "jobs/code", "--timeout", "1s", "--", "true"]);
    assert_eq!(nowhere.status.code(), Some(106), "no store");
}

/// The first holder's whole tree is looked for by the successor, as the first thing that it does.
fn successor_script(ours: [i32; 2], mark: &str) -> String {
    let [run, guardian] = ours;
    format!(
        "date +%s%N > started; grep -laF '{MARK}={mark}' /proc/[0-9]*/environ 2>/dev/null \
         | grep -v -e '^/proc/{run}/' -e '^/proc/{guardian}/' > alive; mv alive looked"
    )
}

/// A shell line that shows that it has begun and then goes on for ever.
fn goes_on(name: &str) -> String {
    format!(": > up.{name}; while :; do sleep 1; done")
}

#[derive(Clone, Copy, Debug)]
enum Family {
    /// A grandchild in a session of its own whose parent is gone: no process group reaches it.
    DoubleFork,
    /// A shell with background jobs.
    Jobs,
    /// A shell that ignores everything that can be ignored.
    Deaf,
}

impl Family {
    const ALL: [Family; 3] = [Family::DoubleFork, Family::Jobs, Family::Deaf];

    fn script(self) -> String {
        let (a, b) = (goes_on("a"), goes_on("b"));
        match self {
            Family::DoubleFork => format!("(setsid sh -c '{b}' >/dev/null 2>&1 </dev/null &) ; {a}"),
            Family::Jobs => format!("sh -c '{b}' & sh -c 'sleep 1000' & {a}"),
            Family::Deaf => format!("trap '' TERM INT HUP QUIT USR1; sh -c '{b}' & {a}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    RunStopped,
    RunKilled,
    GuardianKilled,
    GuardianStopped,
}

impl Fault {
    const ALL: [Fault; 4] =
        [Fault::RunStopped, Fault::RunKilled, Fault::GuardianKilled, Fault::GuardianStopped];
}

/// Breaks one of the two processes that keep a tree, and lets the successor look for survivors.
fn break_one(node: &Node, family: Family, fault: Fault, contain: &str) {
    let name = format!("{family:?}-{fault:?}-{contain}");
    let resource = format!("trees/{name}");
    let scratch = Scratch::new(&format!("run-{name}"));
    // A wide margin where the machine may be busy with other things, the usual one where it is measured.
    let (ttl, kill_before) = if scale().full { ("3s", "100ms") } else { ("4s", "1s") };
    let holder = ["run", &resource, "--ttl", ttl, "--kill-before", kill_before, "--contain", contain];
    let mut run = Run::start(node, &scratch, &name, &holder, &family.script());
    for member in ["up.a", "up.b"] {
        wait_for(&scratch.path().join(member));
    }
    let guardian = run.guardian();
    assert!(run.members(guardian).len() >= 2, "{name}: the tree is up");
    let looks = successor_script([run.pid(), guardian], &name);
    let next = ["run", &resource, "--ttl", ttl, "--contain", "subreaper"];
    let mut successor = Run::start(node, &scratch, &format!("next-{name}"), &next, &looks);
    wait_for_waiter(node, &resource);
    match fault {
        Fault::RunStopped => run.signal(Signal::STOP),
        Fault::RunKilled => run.signal(Signal::KILL),
        Fault::GuardianKilled => send(guardian, Signal::KILL),
        Fault::GuardianStopped => send(guardian, Signal::STOP),
    }
    let looked = scratch.path().join("looked");
    wait_for(&looked);
    let alive = fs::read_to_string(&looked).expect("the successor has looked");
    assert_eq!(alive, "", "{name}: alive when the successor began\n{}", run.log());
    assert_eq!(successor.wait().code(), Some(0), "{name}");
    run.signal(Signal::CONT);
    let ended = run.wait();
    match fault {
        Fault::RunStopped => assert_eq!(ended.code(), Some(104), "{name}: the lease was lost\n{}", run.log()),
        Fault::RunKilled => assert_eq!(ended.signal(), Some(9), "{name}"),
        Fault::GuardianKilled | Fault::GuardianStopped => {
            // On a machine that is busy with other things the lease itself may have been lost meanwhile.
            let lost = !scale().full && ended.code() == Some(104);
            assert!(ended.code() == Some(101) || lost, "{name}: unguarded, {ended}\n{}", run.log())
        }
    }
    assert!(run.members(guardian).is_empty(), "{name}: nothing came back");
}

#[test]
fn nothing_of_a_tree_is_alive_when_its_successor_starts() {
    let _turn = alongside();
    let node = Node::start("run-trees");
    let contains = ["cgroup", "namespace", "subreaper"];
    // Light: every family under every fault, contained by each in turn. Full: everything by everything.
    let rounds = if scale().full { contains.len() } else { 1 };
    for round in 0..rounds {
        for (number, family) in Family::ALL.into_iter().enumerate() {
            std::thread::scope(|scope| {
                for (index, fault) in Fault::ALL.into_iter().enumerate() {
                    let (node, contain) = (&node, contains[(round + number + index) % 3]);
                    scope.spawn(move || break_one(node, family, fault, contain));
                }
            });
        }
    }
}

/// When either of the two that keep a tree is killed, the other ends the tree at once and sees to it that the successor need not
/// wait for the TTL, which would be longer than this test waits.
#[test]
fn when_either_is_killed_the_other_ends_the_tree_at_once() {
    let _turn = alongside();
    let node = Node::start("run-twins");
    let rounds = if scale().full { 3 } else { 1 };
    for (round, fault) in
        (0..rounds).flat_map(|round| [(round, Fault::RunKilled), (round, Fault::GuardianKilled)])
    {
        let contain = ["cgroup", "namespace", "subreaper"][round % 3];
        let (name, resource) = (format!("twins-{fault:?}-{round}"), format!("twins/{fault:?}/{round}"));
        let scratch = Scratch::new(&format!("run-{name}"));
        let holder = ["run", &resource, "--ttl", "30m", "--contain", contain];
        let mut run = Run::start(&node, &scratch, &name, &holder, &Family::DoubleFork.script());
        for member in ["up.a", "up.b"] {
            wait_for(&scratch.path().join(member));
        }
        let guardian = run.guardian();
        let looks = successor_script([run.pid(), guardian], &name);
        let next = ["run", &resource, "--ttl", "30m", "--contain", "subreaper"];
        let mut successor = Run::start(&node, &scratch, &format!("next-{name}"), &next, &looks);
        wait_for_waiter(&node, &resource);
        let killed = Instant::now();
        match fault {
            Fault::RunKilled => run.signal(Signal::KILL),
            _ => send(guardian, Signal::KILL),
        }
        let looked = scratch.path().join("looked");
        wait_for(&looked);
        eprintln!(
            "{fault:?} in a {contain}: the successor had begun {:?} later, TTL 30 min",
            killed.elapsed()
        );
        assert_eq!(fs::read_to_string(&looked).expect("it has looked"), "", "{name}: alive\n{}", run.log());
        assert_eq!(successor.wait().code(), Some(0), "{name}");
        run.wait();
        let history_text = history(&node, &resource);
        assert!(history_text.contains("died"), "{name}: the store was told that it died: {history_text}");
    }
}

/// The child is killed and leaves a grandchild behind: the successor is granted at once, and only after that one was seen dead.
#[test]
fn a_killed_child_is_succeeded_at_once_and_only_after_the_rest_was_seen_dead() {
    let _turn = alone();
    let node = Node::start("run-death");
    // With the guardian stopped, the rest of the tree is `run`'s alone to kill: nobody else would before the deadline.
    let scenes = [
        ("cgroup", false),
        ("namespace", false),
        ("subreaper", false),
        ("cgroup", true),
        ("subreaper", true),
    ];
    let rounds = scenes.len() * if scale().full { 4 } else { 1 };
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let (contain, stop_guardian) = scenes[round % scenes.len()];
        let scratch = Scratch::new("run-death");
        let name = format!("death-{round}");
        let resource = format!("death/{round}");
        let script = format!("echo $$ > child; {}", Family::DoubleFork.script());
        let run = Run::start(
            &node,
            &scratch,
            &name,
            &["run", &resource, "--ttl", "30s", "--contain", contain],
            &script,
        );
        for member in ["up.a", "up.b"] {
            wait_for(&scratch.path().join(member));
        }
        let guardian = run.guardian();
        let looks = successor_script([run.pid(), guardian], &name);
        let next = ["run", &resource, "--ttl", "30s", "--contain", "subreaper"];
        let mut successor = Run::start(&node, &scratch, &format!("next-{name}"), &next, &looks);
        wait_for_waiter(&node, &resource);
        // The first process of the command: in a namespace the number that it knows itself by is not ours.
        let shell = run.members(guardian).into_iter().find(|pid| words_of(*pid).starts_with("sh -c echo"));
        let shell = shell.expect("the command is running");
        let mut http = node.http();
        let token = |http: &mut tenure_e2e::Http| {
            http.get(&format!("/v1/leases/{resource}")).expect(200)["token"].as_u64().expect("a token")
        };
        let before = token(&mut http);
        if stop_guardian {
            send(guardian, Signal::STOP);
        }
        let killed = Instant::now();
        send(shell, Signal::KILL);
        until("the successor is granted", PATIENCE, || token(&mut http) > before);
        let granted = killed.elapsed();
        let guarded = if stop_guardian { ", the guardian stopped" } else { "" };
        eprintln!("{contain}{guarded}: granted {granted:?} after the child was killed, TTL 30 s");
        // Nobody says how the child ended then, which is waited for a moment.
        if !stop_guardian {
            slowest = slowest.max(granted);
        }
        wait_for(&scratch.path().join("looked"));
        assert_eq!(
            fs::read_to_string(scratch.path().join("looked")).expect("it has looked"),
            "",
            "{contain}"
        );
        assert_eq!(successor.wait().code(), Some(0));
        let history_text = history(&node, &resource);
        assert!(history_text.contains("died"), "the store was told that it died: {history_text}");
    }
    let limit = Duration::from_millis(if scale().full { 100 } else { 5_000 });
    assert!(slowest < limit, "a seen death cost {slowest:?}");
}

/// SIGTERM: the child is asked, ends in its own time, and a warmed-up candidate takes over.
#[test]
fn a_drain_hands_over_to_a_warmed_up_candidate() {
    let _turn = alongside();
    let node = Node::start("run-drain");
    let scratch = Scratch::new("run-drain");
    let politely = "trap 'date +%s%N > ended; exit 5' TERM; : > up; while :; do sleep 0.05; done";
    let mut old =
        Run::start(&node, &scratch, "old", &["run", "drain", "--ttl", "30s", "--hand-over"], politely);
    wait_for(&scratch.path().join("up"));
    let candidate = ["elect", "drain", "--ttl", "30s", "--warm-up", "echo $TENURE_RESOURCE > warm"];
    let leads = "trap 'exit 0' TERM; date +%s%N > leads; while :; do sleep 0.05; done";
    let mut new = Run::start(&node, &scratch, "new", &candidate, leads);
    wait_for_waiter(&node, "drain");
    wait_for(&scratch.path().join("warm"));
    assert!(!scratch.path().join("leads").exists(), "it does not lead yet");
    old.signal(Signal::TERM);
    assert_eq!(old.wait().code(), Some(5), "the child's own code\n{}", old.log());
    wait_for(&scratch.path().join("leads"));
    let stamp = |name: &str| -> i64 {
        until_some("a time was written", PATIENCE, || {
            fs::read_to_string(scratch.path().join(name)).ok()?.trim().parse().ok()
        })
    };
    let gap = stamp("leads") - stamp("ended");
    assert!(gap > 0, "the new one led {gap} ns before the old one had ended");
    eprintln!("drained child to next child: {} ms", gap / 1_000_000);
    let history_text = history(&node, "drain");
    assert!(history_text.contains("released") && !history_text.contains("died"), "{history_text}");
    new.signal(Signal::TERM);
    assert_eq!(new.wait().code(), Some(0), "a leader resigns when it is asked to\n{}", new.log());
}

/// A child that does not heed SIGTERM is killed when its time is over, with all of its family.
#[test]
fn a_drain_does_not_wait_for_ever() {
    let _turn = alongside();
    let node = Node::start("run-grace");
    let scratch = Scratch::new("run-grace");
    let arguments = ["run", "grace", "--ttl", "30s", "--grace", "300ms"];
    let mut run = Run::start(&node, &scratch, "grace", &arguments, &Family::Deaf.script());
    wait_for(&scratch.path().join("up.b"));
    let guardian = run.guardian();
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code(), Some(137), "it had to be killed\n{}", run.log());
    assert!(run.members(guardian).is_empty());
    assert!(history(&node, "grace").contains("died"));
}

/// The store is gone when SIGTERM comes: `run` gives its lease back as far as it can, and ends at its deadline all the same.
#[test]
fn a_run_whose_store_is_gone_ends_after_sigterm() {
    let _turn = alongside();
    let ttl = Duration::from_secs(6);
    let politely = "trap 'exit 5' TERM; : > up; while :; do sleep 0.05; done";
    for arguments in [&["run", "gone", "--ttl", "6s", "--hand-over"][..], &["elect", "gone", "--ttl", "6s"]] {
        let node = Node::start("run-gone");
        let scratch = Scratch::new("run-gone");
        let mut run = Run::start(&node, &scratch, arguments[0], arguments, politely);
        wait_for(&scratch.path().join("up"));
        // Stopped and not killed: connections stay open, and nothing is ever answered.
        node.pause();
        let history_text = Instant::now();
        run.signal(Signal::TERM);
        assert_eq!(run.wait().code(), Some(5), "the child's own code\n{}", run.log());
        // Twice what was left at most: a machine that compiles at the same time is slow.
        assert!(history_text.elapsed() < ttl * 2, "{arguments:?} took {:?}", history_text.elapsed());
        node.resume();
    }
}

/// A candidate whose lease is taken away stops its command and waits in the queue again.
#[test]
fn a_loss_stops_the_command_and_a_candidate_campaigns_again() {
    let _turn = alongside();
    let node = Node::start("run-loss");
    let scratch = Scratch::new("run-loss");
    let script = "echo $TENURE_TOKEN >> tokens; while :; do sleep 1; done";
    let mut run = Run::start(&node, &scratch, "run", &["run", "loss/run", "--ttl", "5s"], script);
    let tokens = || fs::read_to_string(scratch.path().join("tokens")).unwrap_or_default().lines().count();
    until("it runs", PATIENCE, || tokens() == 1);
    let revoked = run_tenure(&node.endpoint(), &["revoke", "loss/run", "--now", "--reason", "a test"]);
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    assert_eq!(run.wait().code(), Some(104), "{}", run.log());

    let mut elect = Run::start(&node, &scratch, "elect", &["elect", "loss/elect", "--ttl", "5s"], script);
    until("it leads", PATIENCE, || tokens() == 2);
    let guardian = elect.guardian();
    let revoked = run_tenure(&node.endpoint(), &["revoke", "loss/elect", "--reason", "a test"]);
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    until("it leads again", PATIENCE, || tokens() == 3);
    assert_ne!(elect.guardian(), guardian, "a new term has a new guardian");
    // Not an interrupt: what is started in the background of a shell ignores that, and so does all that it starts.
    elect.signal(Signal::TERM);
    assert_eq!(elect.wait().code(), Some(143), "what ends the command is passed on\n{}", elect.log());
}

/// When the store is gone the lease runs out, and that is what `run` reports: its guardian has done nothing wrong.
#[test]
fn a_store_that_is_gone_costs_the_lease_and_is_not_called_the_guardians_fault() {
    let _turn = alongside();
    let mut node = Node::start("run-gone");
    let scratch = Scratch::new("run-gone");
    let script = "touch running-${TENURE_RESOURCE#gone/}; while :; do sleep 1; done";
    let mut runs: Vec<Run> = (0..3)
        .map(|n| {
            let (name, resource) = (format!("gone-{n}"), format!("gone/{n}"));
            Run::start(&node, &scratch, &name, &["run", &resource, "--ttl", "5s"], script)
        })
        .collect();
    (0..3).for_each(|n| wait_for(&scratch.path().join(format!("running-{n}"))));
    node.kill();
    for run in &mut runs {
        assert_eq!(run.wait().code(), Some(104), "{}", run.log());
        assert!(!run.log().contains("the guardian"), "{}", run.log());
    }
}

/// Who leads is shown, with what it published; that nobody leads is shown as clearly; and a watch receives both.
#[test]
fn who_leads_is_shown_and_that_nobody_does() {
    let _turn = alongside();
    let node = Node::start("run-leader");
    let scratch = Scratch::new("run-leader");
    let ask = |arguments: &[&str]| {
        let Output { status, stdout, stderr } = run_tenure(&node.endpoint(), arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (status.code(), text(&stdout), text(&stderr))
    };
    let shown = || -> (Option<i32>, serde_json::Value) {
        let (code, said, talk) = ask(&["leader", "office", "--json"]);
        (code, serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said} {talk}")))
    };
    let (code, _, talk) = ask(&["leader", "office"]);
    assert_eq!(code, Some(7), "nobody has ever led: {talk}");
    assert!(talk.contains("nobody leads office"), "{talk}");
    assert_eq!(
        shown(),
        (
            Some(7),
            serde_json::json!({"election": "office", "leader": null, "value": null,
        "value_base64": null, "candidates": 0, "delayed_ms": null})
        )
    );

    let output_file = scratch.path().join("heard");
    let mut watch = Command::new(tenure_binary());
    watch.args(["leader", "office", "--watch"]).env("TENURE_ENDPOINTS", node.endpoint()).stdin(Stdio::null());
    let watch = watch.stdout(fs::File::create(&output_file).expect("a file")).spawn().expect("it starts");
    let _watch = Watching(watch);
    let lines = || -> Vec<String> {
        fs::read_to_string(&output_file).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    until("the watch has said that nobody leads", PATIENCE, || lines() == ["office\tno leader"]);

    let arguments = ["elect", "office", "--holder", "first", "--value", "10.0.0.7:9000"];
    let mut first = Run::start(&node, &scratch, "first", &arguments, &goes_on("a"));
    wait_for(&scratch.path().join("up.a"));
    let _second =
        Run::start(&node, &scratch, "second", &["elect", "office", "--holder", "second"], &goes_on("b"));
    wait_for_waiter(&node, "office");
    let (code, leader) = shown();
    assert_eq!(code, Some(0), "{leader}");
    assert_eq!(
        (&leader["leader"]["holder"], &leader["value"]),
        (&"first".into(), &"10.0.0.7:9000".into()),
        "{leader}"
    );
    assert_eq!(leader["candidates"], 1, "{leader}");

    first.signal(Signal::TERM);
    first.wait();
    wait_for(&scratch.path().join("up.b"));
    let (_, leader) = shown();
    assert_eq!(
        (&leader["leader"]["holder"], &leader["value"]),
        (&"second".into(), &serde_json::Value::Null),
        "{leader}"
    );
    until("the watch has said who leads now", PATIENCE, || {
        lines().last().is_some_and(|line| line.contains("second"))
    });
    let lines = lines();
    assert!(lines.iter().any(|line| line.contains("first") && line.ends_with("10.0.0.7:9000")), "{lines:?}");
}

/// A `tenure` that follows something. Killed when dropped.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session's id is all that it takes to end the session. A command of `tenure run` does not get it, nor one that happened to
/// be in the environment, and `tenure` says what to do where it is missing.
#[test]
fn a_command_does_not_find_the_session_unless_asked_for() {
    let _turn = alongside();
    let node = Node::start("run-secret");
    let run = |more: &[&str], script: &str| {
        let output = Command::new(tenure_binary())
            .args(["run", "jobs/secret", "--endpoints", &node.endpoint()])
            .args(more)
            .args(["--", "sh", "-c", script])
            .env("TENURE_SESSION", "1-00112233445566778899aabbccddeeff")
            .output()
            .expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let show = "cat /proc/self/environ /proc/$PPID/cmdline";
    let (code, shown, _) = run(&[], show);
    assert_eq!(code, Some(0));
    assert!(shown.contains("TENURE_RESOURCE=jobs/secret"), "or nothing was looked into: {shown}");
    assert!(!shown.contains("TENURE_SESSION") && !shown.contains("00112233"), "{shown}");
    let release = format!("{} release jobs/secret", tenure_binary().display());
    let (code, _, talk) = run(&[], &release);
    assert_eq!(code, Some(2), "{talk}");
    assert!(talk.contains("--pass-session"), "{talk}");
    let (code, said, talk) = run(&["--pass-session"], "printenv TENURE_SESSION");
    assert_eq!(code, Some(0), "{said} {talk}");
    assert!(said.contains('-') && !said.contains("00112233"), "its own session: {said}");
}
