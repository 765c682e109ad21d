//! The vectors of the conformance suite: written by `cargo xtask fix`, compared here with what the holder
//! says today, and replayed from the files against the Rust holder.

use std::path::PathBuf;

use serde_json::Value;
use tenure_conformance::{SEED, TRACES, replay, stories, timing_lines, traces};

/// The size that the files may have together: they are in the repository.
const BYTES_MAX: usize = 4 << 20;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../sdk/conformance/vectors").join(name)
}

fn golden(name: &str, lines: &[Value]) -> String {
    let path = path(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).expect("a golden file can be written");
    }
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask fix` writes it", path.display()));
    let kept: Vec<&str> = text.lines().collect();
    assert_eq!(kept.len(), lines.len(), "{name} has another length; `cargo xtask fix` writes it");
    for (index, (kept, line)) in kept.iter().zip(lines).enumerate() {
        let kept: Value = serde_json::from_str(kept).expect("a line of JSON");
        assert_eq!(kept, *line, "{name}, line {}: `cargo xtask fix` writes it", index + 1);
    }
    text
}

#[test]
fn the_stories_are_what_the_holder_says() {
    let text = golden("stories.jsonl", &stories());
    let (stories, steps) = replay(&text).unwrap();
    assert!(stories >= 30 && steps > 250, "{stories} stories, {steps} steps");
}

#[test]
fn the_random_traces_are_what_the_holder_says() {
    let text = golden("random.jsonl", &traces(SEED, TRACES));
    assert!(text.len() < BYTES_MAX, "{} bytes are too many for the repository", text.len());
    let (traces, steps) = replay(&text).unwrap();
    assert_eq!(traces, TRACES);
    println!("{traces} traces, {steps} steps, {} bytes", text.len());
}

#[test]
fn the_timing_is_what_the_core_says() {
    golden("timing.jsonl", &timing_lines());
}

/// A replay that cannot fail proves nothing: every expectation that is changed is noticed.
#[test]
fn a_wrong_expectation_is_noticed() {
    let lines: Vec<Value> = stories();
    let mut changed = 0;
    for index in (0..lines.len()).filter(|index| lines[*index].get("expect").is_some()).step_by(7) {
        let mut wrong = lines.clone();
        wrong[index]["expect"] = serde_json::json!("something else");
        let text: String = wrong.iter().map(|line| format!("{line}\n")).collect();
        assert!(replay(&text).is_err(), "line {}", index + 1);
        changed += 1;
    }
    assert!(changed > 20);
}

/// Every kind of step and every answer is in the random traces, so that a port cannot miss one.
#[test]
fn the_random_traces_reach_everything() {
    let text = traces(SEED, TRACES).iter().map(|line| format!("{line}\n")).collect::<String>();
    let words = [
        "not_renewed",
        "past_deadline",
        "\"paused\":",
        "clocks_disagree",
        "no_progress",
        "\"expired\":",
        "\"lost\":",
        "\"fenced\":",
        "giving_back",
        "draining",
        "read_only",
        "not_armed",
        "too_short",
        "ask_for_leases",
        "session_ended",
        "\"transferred\"",
        "\"out\":",
        "\"unknown\"",
    ];
    for word in words {
        let found = text.matches(word).count();
        assert!(found >= 5, "{word} occurs {found} times");
    }
}
