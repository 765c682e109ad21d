//! Backups larger than any entry of the log: restored through any node, while leaders and connections are
//! lost, and never visible in part (`acknowledged_is_kept`, `no_one_takes_us_down`).
//!
//! `TENURE_TEST_FULL=1` restores a million registers, and a gigabyte of values: the measures in
//! `docs/operations.md`.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_client::{Call, Endpoints, Repeat, Transport, proto};
use tenure_core::state::{Content, RegisterNumber, RegisterRecord, State};
use tenure_core::{FormatVersion, Limits, Revision, Settings};
use tenure_e2e::{Cluster, Node, Scratch, alone, alongside, run_tenure, scale, until};

/// A backup with so many registers of so many bytes, as a cluster of that size writes it.
fn write_backup(file: &Path, registers: u64, value_bytes: usize) -> u64 {
    let mut state = State {
        format: FormatVersion::NEWEST,
        settings: Settings { cluster: [7; 16], limits: Limits::default() },
        last_token: 7,
        revision: Revision::new(registers),
        registers_named: registers,
        ..State::default()
    };
    let value: Arc<[u8]> = vec![b'v'; value_bytes].into();
    for number in 1..=registers {
        let revision = Revision::new(number);
        let content = Content {
            value: value.clone(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            session: None,
        };
        let key = format!("restored/{number:07}").parse().expect("it is a key");
        let record = RegisterRecord { key, guard: None, content: Some(content) };
        state.registers.insert(RegisterNumber(number), record);
    }
    let mut output = std::io::BufWriter::new(std::fs::File::create(file).expect("a file of ours"));
    tenure_wire::write_backup(&state, &mut output).expect("it is written");
    drop(output);
    std::fs::metadata(file).expect("it is there").len()
}

#[track_caller]
fn done(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{:?}\n{stdout}\n{stderr}", output.status);
    stdout
}

fn restore(endpoints: &str, file: &Path) -> Output {
    let file = file.to_str().expect("a path of ours is text");
    run_tenure(
        endpoints,
        &["cluster", "restore", file, "--token-floor", "100", "--holders-stopped", "--json"],
    )
}

fn status(node: &Node) -> Value {
    node.http().get("/v1/cluster").expect(200)
}

/// How many pieces of a restore a node has staged.
fn staged(node: &Node) -> u64 {
    status(node)["staging"]["pieces"].as_u64().unwrap_or_default()
}

/// All nodes have the registers, and equal states.
#[track_caller]
fn check_restored(cluster: &Cluster, numbers: &[usize], registers: u64, value_bytes: usize) {
    let state = |number: usize| {
        let status = cluster.node(number).http().get("/v1/cluster?state_hash=true").expect(200);
        (status["applied"].clone(), status["state_hash"].clone())
    };
    until("all nodes have the same state", Duration::from_secs(60), || {
        let first = state(numbers[0]);
        first.1.is_string() && numbers.iter().all(|number| state(*number) == first)
    });
    for number in numbers {
        let node = cluster.node(*number);
        let status = status(node);
        assert_eq!((&status["last_token"], &status["staging"]), (&100.into(), &Value::Null), "{status}");
        for register in [1, registers / 2, registers] {
            let register = node.http().get(&format!("/v1/registers/restored/{register:07}")).expect(200);
            assert_eq!(register["value"].as_str().map(str::len), Some(value_bytes), "{register}");
        }
    }
}

/// 64 MiB go through a follower, and what is there afterwards is backed up again.
#[test]
fn a_backup_larger_than_any_entry_is_restored_through_a_follower() {
    let _turn = alongside();
    let scratch = Scratch::new("large-backup");
    let file = scratch.path().join("large.backup");
    let (registers, value_bytes) = (100_000, 660);
    let bytes = write_backup(&file, registers, value_bytes);
    assert!(bytes > 64 << 20, "{bytes}");
    let cluster = Cluster::start("large", 3);
    let follower = cluster.others(cluster.leader())[0];
    let output = restore(&cluster.node(follower).endpoint(), &file);
    let answer: Value = serde_json::from_str(&done(&output)).expect("one object");
    assert_eq!((&answer["records"], &answer["bytes"]), (&registers.into(), &bytes.into()), "{answer}");
    // Programs are shown how far it is, too.
    let progress: Vec<Value> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object on each line"))
        .collect();
    let phases: Vec<_> = progress.iter().map(|line| line["progress"].as_str().unwrap_or_default()).collect();
    assert_eq!(phases, ["checking", "restoring"], "{progress:?}");
    check_restored(&cluster, &[1, 2, 3], registers, value_bytes);

    let again = scratch.path().join("again.backup");
    let path = again.to_str().expect("a path of ours is text");
    let backed_up =
        done(&run_tenure(&cluster.node(follower).endpoint(), &["cluster", "backup", path, "--json"]));
    let backed_up: Value = serde_json::from_str(&backed_up).expect("one object");
    assert_eq!(backed_up["records"], registers, "{backed_up}");
}

/// The leader dies in the middle of a restore. It goes on: through the follower that reads it, or, if the
/// dead node was the one that read it, through the next endpoint.
#[test]
fn a_leader_lost_in_the_middle_of_a_restore_costs_a_moment() {
    let _turn = alongside();
    let scratch = Scratch::new("lost-leader-backup");
    let file = scratch.path().join("large.backup");
    let (registers, value_bytes) = (40_000, 1_000);
    write_backup(&file, registers, value_bytes);
    for through_follower in [true, false] {
        let mut cluster = Cluster::start("lost-leader", 3);
        let leader = cluster.leader();
        let others = cluster.others(leader);
        let endpoints = match through_follower {
            true => cluster.node(others[0]).endpoint(),
            false => format!("{},{}", cluster.node(leader).endpoint(), cluster.node(others[0]).endpoint()),
        };
        let output = std::thread::scope(|scope| {
            let restoring = scope.spawn(|| restore(&endpoints, &file));
            until("a part of the backup is staged", Duration::from_secs(30), || {
                staged(cluster.node(others[1])) >= 3
            });
            cluster.node_mut(leader).kill();
            restoring.join().expect("it ends")
        });
        done(&output);
        check_restored(&cluster, &others, registers, value_bytes);
    }
}

/// The operator's own process is killed. What is staged shows in the status and nowhere else; the same
/// command goes on.
#[test]
fn a_restore_is_continued_by_the_same_command() {
    let _turn = alongside();
    let scratch = Scratch::new("continued-backup");
    let file = scratch.path().join("large.backup");
    let (registers, value_bytes) = (40_000, 1_000);
    write_backup(&file, registers, value_bytes);
    let cluster = Cluster::start("continued", 3);
    let path = file.to_str().expect("a path of ours is text");
    let arguments = ["cluster", "restore", path, "--token-floor", "100", "--holders-stopped"];
    let mut killed = std::process::Command::new(tenure_e2e::tenure_binary())
        .args(arguments)
        .env("TENURE_ENDPOINTS", cluster.node(1).endpoint())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    until("a part of the backup is staged", Duration::from_secs(30), || staged(cluster.node(2)) >= 3);
    killed.kill().expect("it runs");
    killed.wait().expect("it was killed");
    let shown = done(&run_tenure(&cluster.node(2).endpoint(), &["cluster", "status", "--json"]));
    let shown: Value = serde_json::from_str(&shown).expect("one object");
    assert!(shown["staging"]["pieces"].as_u64() >= Some(3), "{shown}");
    assert_eq!(status(cluster.node(2))["last_token"], 0);
    assert_eq!(cluster.node(3).http().get("/v1/registers/restored/0000001").status, 404);
    done(&run_tenure(&cluster.node(3).endpoint(), &arguments));
    check_restored(&cluster, &[1, 2, 3], registers, value_bytes);
}

/// How long a restore takes, how much memory, and how long the slowest command through the log took
/// meanwhile. A cluster that is being restored has no session to renew, so another command stands for a
/// renewal: it rides in the same entries.
#[test]
fn a_large_restore_stalls_nobody() {
    let _turn = alone();
    let sizes: &[(u64, usize)] =
        if scale().full { &[(1_000_000, 16), (16_384, 64 << 10)] } else { &[(50_000, 16), (512, 64 << 10)] };
    for (registers, value_bytes) in sizes.iter().copied() {
        let scratch = Scratch::new("measured-backup");
        let file = scratch.path().join("large.backup");
        let bytes = write_backup(&file, registers, value_bytes);
        let cluster = Cluster::start("measured", 3);
        let leader = cluster.leader();
        let follower = cluster.others(leader)[0];
        let restored = AtomicBool::new(false);
        let (took, slowest, commands) = std::thread::scope(|scope| {
            let probing = scope.spawn(|| slowest_command(&cluster.endpoints(), &restored));
            let started = Instant::now();
            done(&restore(&cluster.node(follower).endpoint(), &file));
            let took = started.elapsed();
            restored.store(true, Relaxed);
            let (slowest, commands) = probing.join().expect("it ends");
            (took, slowest, commands)
        });
        let memory: Vec<String> =
            (1..=3).map(|number| format!("{} MiB", memory_peak(cluster.node(number)) >> 20)).collect();
        println!(
            "{registers} registers of {value_bytes} bytes, a file of {} MiB: restored in {took:.1?}; of {commands} commands \
             meanwhile the slowest took {slowest:.0?}; memory at most {}",
            bytes >> 20,
            memory.join(", ")
        );
        check_restored(&cluster, &[1, 2, 3], registers, value_bytes);
        assert!(commands > 0, "nothing was measured");
        assert!(slowest < Duration::from_secs(5), "a command took {slowest:?}");
    }
}

/// Sends one command after the other through the log, each of which leaves the cluster unused.
fn slowest_command(endpoints: &str, end: &AtomicBool) -> (Duration, u64) {
    let runtime = tokio::runtime::Runtime::new().expect("threads can be had");
    let endpoints: Endpoints = endpoints.parse().expect("they are endpoints");
    runtime.block_on(async {
        let transport = Transport::new(&endpoints);
        let within = Duration::from_secs(30);
        let (mut slowest, mut commands) = (Duration::ZERO, 0);
        while !end.load(Relaxed) {
            let call = Call { repeat: Repeat::Harmless, within, attempt_within: None, persistent: false };
            let started = Instant::now();
            let done = transport.call(call, |channel, _| async move {
                let request = proto::SetKindRequest {
                    resource: "probe".into(),
                    kind: proto::ResourceKind::Lock.into(),
                    slots: 0,
                };
                ClusterClient::new(channel).set_kind(request).await
            });
            done.await.expect("it is served meanwhile");
            slowest = slowest.max(started.elapsed());
            commands += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (slowest, commands)
    })
}

/// The most memory that a node ever had, in bytes.
fn memory_peak(node: &Node) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")).expect("a number of kilobytes");
    peak.trim().parse::<u64>().expect("a number") << 10
}
