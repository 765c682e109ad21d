//! The README's five minutes and the API reference, typed as they stand there: every `curl` and `tenure` line of
//! their shell blocks is run against a fresh node, and what follows as a comment is what must come back. And the
//! reference is whole: it names every call that a node describes, and every code.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{Node, Scratch, alongside, skipped_without, tenure_binary, until};

/// Fields of an expected answer that are the same every time.
const FIXED: [&str; 11] = [
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
    let quiet = typed.replacen("curl ", "curl -sS -w '\\n%{http_code}' ", 1);
    let output = shell(node, session, &quiet).output().expect("a shell can be started");
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

/// From the clone to a lease on three nodes: the block is one shell's work, so it is given to one shell, line by line as it
/// stands there. Only what costs minutes (the build) is left out, and ports are replaced by free ones.
#[test]
fn the_path_of_a_newcomer_ends_with_a_lease_on_three_nodes() {
    if skipped_without("bash", "the_path_of_a_newcomer_ends_with_a_lease_on_three_nodes") {
        return;
    }
    let _turn = alongside();
    let readme = document("README.md");
    let block = readme.split("```sh cluster\n").nth(1).and_then(|rest| rest.split("```").next());
    let block = block.expect("the README has the block");
    // Whatever goes wrong, no node is left running.
    let mut script = String::from("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    for line in block.lines().filter(|line| !line.starts_with("cargo ")) {
        script.push_str(line);
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
