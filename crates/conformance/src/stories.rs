//! The hand-written stories: the unit tests of the holder in a short text form, read into steps. What each
//! step answers is filled in by the holder and reviewed in the golden file.
//!
//! A line of `stories.txt` is `MS[/RAW_MS] STEP key=value…`; times and lengths are milliseconds. Without a
//! second reading the raw clock shows 500 ms more than the boot clock, so that mixing them up shows.

use serde_json::{Map, Value, json};

use crate::vectors::{Replay, line};

const TEXT: &str = include_str!("stories.txt");
const MILLION: u64 = 1_000_000;
/// The middle of the jitter: the next renewal exactly R later.
const MIDDLE: u64 = (u32::MAX / 2 + 1) as u64;

/// All stories as lines of a vector file.
pub fn stories() -> Vec<Value> {
    let mut lines = Vec::new();
    let mut replay: Option<Replay> = None;
    for text in TEXT.lines().map(|text| text.split('#').next().unwrap_or_default().trim()) {
        let Some((first, rest)) = text.split_once(' ') else {
            assert!(text.is_empty(), "a line of one word: {text}");
            continue;
        };
        if first == "story" {
            let head = head(rest);
            replay = Some(Replay::begin(&head));
            lines.push(head);
            continue;
        }
        let replay = replay.as_mut().expect("a step follows the head of its story");
        let steps = if rest == "setup" {
            // A session opened by a transmission sent at 0 and answered at 0.1 s, with lease 1.
            ["0 transmit", "100 opened number=1", "150 granted token=1"].map(step).to_vec()
        } else {
            vec![step(text)]
        };
        for step in steps {
            let came = replay.step(&Value::Object(step.clone()));
            lines.push(line(step, came));
        }
    }
    lines
}

/// TTL 10 s, R 3 s, rho 0, sigma 200 ms unless the story says otherwise: the deadline falls 9.8 s after the
/// send.
fn head(rest: &str) -> Value {
    let (name, settings) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut head = json!({
        "name": name, "ttl": 10_000 * MILLION, "renew_every": 3_000 * MILLION, "rho_ppm": 0, "sigma": 200 * MILLION,
    });
    for (key, value) in settings.split_whitespace().map(pair) {
        head[key] = if matches!(key, "strict" | "rho_ppm") { value } else { scaled(&value) };
    }
    head
}

fn step(text: &str) -> Map<String, Value> {
    let mut words = text.split_whitespace();
    let at = words.next().expect("a time");
    let what = words.next().expect("a step");
    let mut step = Map::new();
    step.insert("at".into(), readings(at));
    step.insert("do".into(), json!(what));
    match what {
        "transmit" => drop(step.insert("jitter".into(), json!(MIDDLE))),
        "opened" => drop(step.insert("ttl".into(), json!(10_000 * MILLION))),
        "renewed" => {
            step.insert("ttl".into(), json!(10_000 * MILLION));
            step.insert("revision".into(), json!(3));
        }
        "permit" | "read_permit" => drop(step.insert("max_op".into(), json!(0))),
        _ => {}
    }
    for (key, value) in words.map(pair) {
        let value = match key {
            "ttl" | "max_op" => scaled(&value),
            "asked" => readings(value.as_str().map_or_else(|| value.to_string(), String::from).as_str()),
            _ => value,
        };
        step.insert(key.into(), value);
    }
    step
}

fn readings(text: &str) -> Value {
    let ms = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text} is no time")) * MILLION;
    match text.split_once('/') {
        Some((boot, raw)) => json!([ms(boot), ms(raw)]),
        None => json!([ms(text), ms(text) + 500 * MILLION]),
    }
}

fn scaled(value: &Value) -> Value {
    json!(value.as_u64().unwrap_or_else(|| panic!("{value} is no length")) * MILLION)
}

/// `key=value`, where the value is JSON or a bare word.
fn pair(word: &str) -> (&str, Value) {
    let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("{word} is no key=value"));
    (key, serde_json::from_str(value).unwrap_or_else(|_| json!(value)))
}
