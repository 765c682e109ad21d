//! The README's five minutes, typed as they stand there: every `curl` and `tenure` line of its shell blocks
//! is run against a fresh node, and what follows as a comment is what must come back.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_e2e::{Node, alongside, skipped_without, tenure_binary, until};

/// Fields of an expected answer that are the same every time.
const FIXED: [&str; 7] = ["code", "holder", "token", "generation", "presented", "seen", "resource"];

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

/// Runs a line in a shell that finds our binary and this node.
fn shell(node: &Node, line: &str) -> Command {
    let folder = tenure_binary().parent().expect("a binary lies in a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.arg("-c").arg(line.replace("127.0.0.1:7400", &node.endpoint()));
    command.env("PATH", path).env("TENURE_ENDPOINTS", node.endpoint());
    command
}

/// What one `curl` line of the README answers: status and body.
fn curl(node: &Node, typed: &str) -> (String, String) {
    let quiet = typed.replacen("curl ", "curl -sS -w '\\n%{http_code}' ", 1);
    let output = shell(node, &quiet).output().expect("a shell can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{typed} answered {text:?}"));
    (status.to_string(), body.to_string())
}

#[test]
fn the_tour_answers_what_the_readme_says() {
    if skipped_without("curl", "the_tour_answers_what_the_readme_says") {
        return;
    }
    let _turn = alongside();
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let steps = steps(&std::fs::read_to_string(readme).expect("the README can be read"));
    assert!(steps.len() >= 8, "the tour has shrunk to {} steps", steps.len());
    let node = Node::start("readme");
    for step in &steps {
        if step.typed.starts_with("tenure watch ") {
            watch(&node, &step.typed);
        } else if let Some(status) = &step.status {
            let started = Instant::now();
            // "Two seconds later": a reader who is early tries again.
            let (found, body) = loop {
                let (found, body) = curl(&node, &step.typed);
                if found == *status || started.elapsed() > Duration::from_secs(4) {
                    break (found, body);
                }
            };
            assert_eq!(&found, status, "{}\n{body}", step.typed);
            for field in promised_fields(&step.answer) {
                assert!(body.contains(&field), "{}\npromised {field}\nanswered {body}", step.typed);
            }
        } else {
            let output = shell(&node, &step.typed).output().expect("a shell can be started");
            let talk = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} ended with {}: {talk}", step.typed, output.status);
            assert!(!output.stdout.is_empty(), "{} said nothing", step.typed);
        }
    }
}

/// A watch runs until it is stopped; a grant below its prefix must show up.
fn watch(node: &Node, typed: &str) {
    let shown = node.scratch().path().join("watched");
    let file = std::fs::File::create(&shown).expect("a file can be made");
    // `exec`, so that what we kill is the watch and not a shell around it.
    let mut child = shell(node, &format!("exec {typed}"))
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
