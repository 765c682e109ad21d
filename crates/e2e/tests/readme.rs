//! The README and the API reference, typed as they stand there: every `curl` and `tenure` line of their shell blocks is run,
//! and what follows as a comment is what must come back. No block of the README is left out: one that no test here (or, for
//! Rust, the documentation tests of `tenure-client`) runs is an error. And the reference is whole: it names every call
//! that a node describes, and every code.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{Node, Scratch, alone, alongside, run_tenure, skipped_without, tenure_binary, until};

/// Fields of an expected answer that are the same every time.
const FIXED: [&str; 14] = [
    "code",
    "holder",
    "token",
    "generation",
    "presented",
    "seen",
    "resource",
    "state",
    "version",
    "released",
    "succeeded",
    "holderIdentity",
    "leaseDurationSeconds",
    "leaseTransitions",
];

/// One line to type, and the answer that the README promises.
#[derive(Debug, PartialEq)]
struct Step {
    typed: String,
    status: Option<String>,
    answer: String,
}

/// The steps of all shell blocks, in order.
fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut shell = false;
    let mut typed = String::new();
    for line in document.lines() {
        if line.starts_with("```") {
            shell = line == "```sh";
        } else if shell {
            if let Some(promised) = line.strip_prefix("# ") {
                let (status, answer) = promised.split_once("  ").unwrap_or((promised, ""));
                let step = steps.last_mut().expect("an answer follows what was typed");
                step.status = Some(status.to_string());
                step.answer = answer.to_string();
                continue;
            }
            typed.push_str(line.trim_end_matches('\\').trim_start());
            if !line.ends_with('\\') {
                let typed = std::mem::take(&mut typed);
                if typed.starts_with("curl ") || typed.starts_with("tenure ") {
                    steps.push(Step { typed, status: None, answer: String::new() });
                }
            }
        }
    }
    steps
}

/// The pieces `"field":value` of a promised answer that are the same every time.
fn promised_fields(answer: &str) -> Vec<String> {
    let mut fields = Vec::new();
    for name in FIXED {
        let start = format!("\"{name}\":");
        if let Some((_, rest)) = answer.split_once(&start) {
            let value: String = rest.chars().take_while(|letter| !matches!(letter, ',' | '}')).collect();
            fields.push(format!("{start}{value}"));
        }
    }
    fields
}

#[test]
fn promised_answers_are_read_from_the_document() {
    let document = "```sh\ncurl -X PUT x \\\n     -d '{}'\n# 412  {\"code\":\"held\",\"seen\":2}\n```\n```\ncurl no\n```\n";
    let found = steps(document);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].typed.as_str(), found[0].status.as_deref()), ("curl -X PUT x -d '{}'", Some("412")));
    assert_eq!(promised_fields(&found[0].answer), ["\"code\":\"held\"", "\"seen\":2"]);
}

/// A document of ours.
fn document(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(file).expect("our documents can be read")
}

/// Runs a line in a shell that finds our binary and this node, and knows a session.
fn shell(node: &Node, session: &str, line: &str) -> Command {
    let folder = tenure_binary().parent().expect("a binary lies in a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.arg("-c").arg(line.replace("127.0.0.1:7400", &node.endpoint()));
    command.env("PATH", path).env("TENURE_ENDPOINTS", node.endpoint()).env("SESSION", session);
    command
}

/// What one `curl` line answers: status and body.
fn curl(node: &Node, session: &str, typed: &str) -> (String, String) {
    let silent = typed.replacen("curl ", "curl -sS -w '\\n%{http_code}' ", 1);
    let output = shell(node, session, &silent).output().expect("a shell can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{typed} answered {text:?}"));
    (status.to_string(), body.to_string())
}

/// Types a document's lines one after the other.
fn type_all(node: &Node, steps: &[Step]) {
    let mut session = String::new();
    for step in steps {
        if step.typed.starts_with("tenure watch ") {
            watch(node, &step.typed);
        } else if let Some(status) = &step.status {
            let started = Instant::now();
            // "Two seconds later": a reader who is early tries again.
            let (found, body) = loop {
                let (found, body) = curl(node, &session, &step.typed);
                if found == *status || started.elapsed() > Duration::from_secs(4) {
                    break (found, body);
                }
            };
            assert_eq!(&found, status, "{}\n{body}", step.typed);
            for field in promised_fields(&step.answer) {
                assert!(body.contains(&field), "{}\npromised {field}\nanswered {body}", step.typed);
            }
            let answer: Value = serde_json::from_str(&body).unwrap_or_default();
            if let Some(opened) = answer["session"].as_str() {
                session = opened.to_string();
            }
        } else {
            let output = shell(node, &session, &step.typed).output().expect("a shell can be started");
            let talk = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} ended with {}: {talk}", step.typed, output.status);
            assert!(!output.stdout.is_empty(), "{} said nothing", step.typed);
        }
    }
}

#[test]
fn the_tour_answers_what_the_readme_says() {
    if skipped_without("curl", "the_tour_answers_what_the_readme_says") {
        return;
    }
    let _turn = alongside();
    let steps = steps(&document("README.md"));
    assert!(steps.len() >= 8, "the tour has shrunk to {} steps", steps.len());
    type_all(&Node::start("readme"), &steps);
}

#[test]
fn the_reference_answers_what_it_says_and_leaves_nothing_out() {
    if skipped_without("curl", "the_reference_answers_what_it_says_and_leaves_nothing_out") {
        return;
    }
    let _turn = alongside();
    let reference = document("docs/api.md");
    let steps = steps(&reference);
    assert!(steps.len() >= 30, "the reference has shrunk to {} steps", steps.len());
    let node = Node::start("reference");
    type_all(&node, &steps);

    let described = node.http().get("/openapi.json").expect(200);
    let paths = described["paths"].as_object().expect("a description has paths");
    for (path, methods) in paths {
        for method in methods.as_object().expect("a path has methods").keys() {
            let call = format!("{} {path}", method.to_uppercase());
            let named = reference.lines().any(|line| line.starts_with('#') && names(line, &call));
            assert!(named, "docs/api.md has no heading for {call}");
        }
    }
    for line in document("crates/wire/tests/golden/codes.txt").lines() {
        let code = line.split_whitespace().next().expect("a line has a code");
        assert!(reference.contains(&format!("`{code}`")), "docs/api.md does not explain {code}");
    }
}

/// Every fenced block of a document: what it says behind the fence, and its lines.
fn blocks(document: &str) -> Vec<(String, Vec<String>)> {
    let mut blocks: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in document.lines() {
        if let Some(info) = line.strip_prefix("```") {
            inside = !inside;
            if inside {
                blocks.push((info.to_string(), Vec::new()));
            }
        } else if inside {
            blocks.last_mut().expect("a fence was opened").1.push(line.to_string());
        }
    }
    assert!(!inside, "a fence is not closed");
    blocks
}

/// The lines of the block with these words behind its fence.
fn block(document: &str, info: &str) -> Vec<String> {
    let mut found = blocks(document).into_iter().filter(|(words, _)| words == info).map(|(_, lines)| lines);
    let lines = found.next().unwrap_or_else(|| panic!("no block is marked `{info}`"));
    assert!(found.next().is_none(), "two blocks are marked `{info}`");
    lines
}

/// A line without the comment behind it.
fn command(line: &str) -> &str {
    line.split(" #").next().unwrap_or(line).trim()
}

/// A line that builds is too slow to be typed; what it builds must be there under that name.
fn names_what_there_is(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1));
    let package = after("-p").unwrap_or_else(|| panic!("{line} names no package"));
    let manifest = document(&format!("crates/{}/Cargo.toml", package.trim_start_matches("tenure-")));
    assert!(manifest.contains(&format!("name = \"{package}\"")), "{line}: no such package");
    let binary = after("--bin").unwrap_or(&"tenure");
    assert!(manifest.contains(&format!("name = \"{binary}\"")), "{line}: it builds no {binary}");
}

#[test]
fn no_block_of_the_readme_is_left_untyped() {
    for (info, lines) in blocks(&document("README.md")) {
        for line in &lines {
            match info.as_str() {
                // Run by the documentation tests of `tenure-client`.
                "rust" => {}
                // Typed by the tests of this file.
                "sh" => assert!(
                    ["curl ", "tenure ", "# ", "     "].iter().any(|start| line.starts_with(start)),
                    "nobody types this line of the tour: {line}"
                ),
                "sh start" | "sh cluster" | "sh demo" | "text demo" => {}
                other => panic!("a block marked `{other}` is run by no test:\n{}", lines.join("\n")),
            }
        }
    }
    let library = document("crates/client/src/lib.rs");
    assert!(library.contains("README.md"), "the README's Rust is no documentation test any more");
}

/// The two commands: one serves, the other is how this test is run.
#[test]
fn the_first_command_serves_and_says_what_to_do_next() {
    let _turn = alongside();
    let lines = block(&document("README.md"), "sh start");
    let [serve, judge] = lines.as_slice() else { panic!("not two commands: {lines:?}") };
    names_what_there_is(serve);
    let (_, arguments) = command(serve).split_once(" -- ").expect("what is run");
    let scratch = Scratch::new("first-command");
    let said = scratch.path().join("said");
    let mut child = Command::new(tenure_binary())
        .args(arguments.split_whitespace())
        .args(["--listen", "127.0.0.1:0"])
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&said).expect("a file can be made"))
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary can be started");
    let printed = || std::fs::read_to_string(&said).unwrap_or_default();
    let promised = ["http://127.0.0.1:", "tenure acquire ", "tenure explain ", "curl "];
    until("the node says where it is and what to try", Duration::from_secs(30), || {
        promised.iter().all(|word| printed().contains(word))
    });
    assert!(scratch.path().join("tenure-data").is_dir(), "the data is not where the README says");
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");

    // That command runs this test; here only that it is still called so.
    assert_eq!(command(judge), "cargo xtask test");
    assert!(document(".cargo/config.toml").contains("xtask = "), "cargo does not know xtask");
    assert!(document("xtask/src/main.rs").contains("\"test\""), "xtask does not know test");
    assert!(document(".ci/run").ends_with(&format!("\nexec {}\n", command(judge))), "CI runs something else");
}

/// The story that the README shows is told like that: the same sentences, whatever the numbers.
#[test]
fn the_demo_tells_what_the_readme_shows() {
    let _turn = alone();
    let readme = document("README.md");
    let [line]: [String; 1] = block(&readme, "sh demo").try_into().expect("one command");
    let mut arguments: Vec<&str> = command(&line).split_whitespace().skip(1).collect();
    arguments.push("--quick");
    let output = run_tenure("127.0.0.1:1", &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let words =
        |line: &str| line.chars().filter(|sign| !sign.is_ascii_digit() && *sign != '.').collect::<String>();
    let printed: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(words).collect();
    for shown in block(&readme, "text demo") {
        let shown = words(&shown);
        // A pause of two seconds and one of a few hundred milliseconds read alike but for their unit.
        let same =
            |printed: &String| printed.replace(" ms", " s").trim() == shown.replace(" ms", " s").trim();
        assert!(printed.iter().any(same), "the story does not say {shown:?}:\n{}", printed.join("\n"));
    }
    // The comment names the others.
    let (_, others) = line.split_once(" #").expect("the others are named");
    let refused = run_tenure("127.0.0.1:1", &["demo", "no-such-story"]);
    let names = String::from_utf8_lossy(&refused.stderr).into_owned();
    for story in ["lock", "paysetu", "cricstream", "partition", "redlock", "storm"] {
        assert!(others.contains(story) && names.contains(story), "{story}: {others}\n{names}");
    }
}

/// From the clone to a lease on three nodes: the block is one shell's work, so it is given to one shell, line by line as it
/// stands there. Only what costs minutes (the build) is left out, and ports are replaced by free ones.
#[test]
fn the_path_of_a_newcomer_ends_with_a_lease_on_three_nodes() {
    if skipped_without("bash", "the_path_of_a_newcomer_ends_with_a_lease_on_three_nodes") {
        return;
    }
    let _turn = alongside();
    let readme = document("README.md");
    let (builds, typed): (Vec<String>, Vec<String>) =
        block(&readme, "sh cluster").into_iter().partition(|line| line.starts_with("cargo "));
    builds.iter().for_each(|line| names_what_there_is(line));
    // Whatever goes wrong, no node is left running.
    let mut script = String::from("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    for line in typed {
        script.push_str(&line);
        script.push('\n');
    }
    // All are taken before any is given back, so that none is given twice.
    let taken: Vec<TcpListener> =
        (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
    for (port, free) in ["7401", "7402", "7403", "7501", "7502", "7503"].into_iter().zip(&taken) {
        let named = format!("127.0.0.1:{port}");
        assert!(script.contains(&named), "the block does not name {named}");
        script = script.replace(&named, &free.local_addr().expect("it is bound").to_string());
    }
    drop(taken);
    let scratch = Scratch::new("newcomer");
    let folder = tenure_binary().parent().expect("a binary lies in a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let output =
        Command::new("bash").args(["-c", &script]).current_dir(scratch.path()).env("PATH", path).output();
    let output = output.expect("a shell can be started");
    let (said, talk) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let logs: String = (1..=3)
        .filter_map(|node| std::fs::read_to_string(scratch.path().join(format!("log-{node}"))).ok())
        .collect();
    assert!(output.status.success(), "{}\n{said}\n{talk}\n{logs}", output.status);
    for promised in ["held under token 1\n", "held under token 2\n", "settlement/cron", "released"] {
        assert!(said.contains(promised), "the newcomer did not see {promised:?}\n{said}\n{talk}");
    }
}

/// Whether a heading names a call, and not only one whose path begins alike.
fn names(heading: &str, call: &str) -> bool {
    heading.match_indices(call).any(|(at, _)| {
        let rest = &heading[at + call.len()..];
        rest.is_empty() || rest.starts_with(' ')
    })
}

/// A watch runs until it is stopped; a grant below its prefix must show up.
fn watch(node: &Node, typed: &str) {
    let shown = node.scratch().path().join("watched");
    let file = std::fs::File::create(&shown).expect("a file can be made");
    // `exec`, so that what we kill is the watch and not a shell around it.
    let mut child = shell(node, "", &format!("exec {typed}"))
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell can be started");
    let mut http = node.http();
    let mut number = 0;
    until("the watch shows a grant", Duration::from_secs(10), || {
        number += 1;
        let path = format!("/v1/leases/settlement/watched-{number}:acquire");
        http.post(&path, &json!({"holder": "w", "ttl_ms": 1000})).expect(200);
        let mut text = String::new();
        let read = std::fs::File::open(&shown).and_then(|mut file| file.read_to_string(&mut text));
        read.is_ok() && text.contains("settlement/watched-")
    });
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");
}
