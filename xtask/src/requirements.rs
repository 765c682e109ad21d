//! Checks `docs/contributing/requirements.md`: it lists every requirement and every correction exactly once,
//! each row names its evidence or says "not yet", and the files and tests that it names exist.

use std::collections::BTreeMap;

use crate::steps::{Judged, Verdict};
use crate::workspace::root;

const DOCUMENT: &str = "docs/contributing/requirements.md";
const LINES: usize = 137;
const CORRECTIONS: usize = 41;

/// Judges the document.
pub fn judge() -> Judged {
    let text =
        std::fs::read_to_string(root().join(DOCUMENT)).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let rows = rows(&text)?;
    let mut wrong = Vec::new();
    let numbered = (1..=LINES).map(|number| number.to_string());
    for key in numbered.chain((1..=CORRECTIONS).map(|number| format!("W{number}"))) {
        match rows.get(&key) {
            None => wrong.push(format!("line {key} is missing")),
            Some(row) if row.shown_by.is_empty() => {
                wrong.push(format!("line {key} does not say what shows it"))
            }
            Some(row) => wrong.extend(evidence(&row.shown_by).filter_map(|what| missing(&key, what))),
        }
    }
    if rows.len() > LINES + CORRECTIONS {
        wrong.push(format!("{} rows too many", rows.len() - LINES - CORRECTIONS));
    }
    if !wrong.is_empty() {
        return Err(format!("{DOCUMENT}\n    {}", wrong.join("\n    ")));
    }
    let open = rows.values().filter(|row| row.shown_by.contains("not yet")).count();
    Ok(Verdict::Passed(format!(
        "{} lines, {} shown, {open} not yet or not wholly",
        rows.len(),
        rows.len() - open
    )))
}

struct Row {
    shown_by: String,
}

/// The rows `| key | what | shown by |` by key.
fn rows(text: &str) -> Result<BTreeMap<String, Row>, String> {
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [key, _, shown_by] = cells[..] else { continue };
        let digits = key.strip_prefix('W').unwrap_or(key);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        if rows.insert(key.to_string(), Row { shown_by: shown_by.to_string() }).is_some() {
            return Err(format!("{DOCUMENT}: line {key} stands there twice"));
        }
    }
    Ok(rows)
}

/// What stands between backticks and looks like a file of ours: `crates/x/y.rs` or `crates/x/y.rs::function`.
fn evidence(shown_by: &str) -> impl Iterator<Item = &str> {
    let rooms = ["crates/", "docs/", "xtask/", "web/", "deploy/", "examples/"];
    shown_by.split('`').skip(1).step_by(2).filter(move |what| rooms.iter().any(|room| what.starts_with(room)))
}

/// Says what is wrong with a piece of evidence, if anything is.
fn missing(key: &str, what: &str) -> Option<String> {
    let (path, function) = what.split_once("::").map_or((what, None), |(path, name)| (path, Some(name)));
    let file = root().join(path);
    if !file.exists() {
        return Some(format!("line {key}: {path} does not exist"));
    }
    let function = function?;
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    (!text.contains(&format!("fn {function}(")))
        .then(|| format!("line {key}: {path} has no function {function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_and_doubles_reported() {
        let text = "| line | asks for | shown by |\n|--:|---|---|\n| 1 | grant | `docs/a.md` |\n| W2 | six | not yet |\n";
        let found = rows(text).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["1", "W2"]);
        assert!(rows("| 1 | a | b |\n| 1 | a | b |\n").is_err());
    }

    #[test]
    fn evidence_must_exist() {
        assert_eq!(missing("1", "xtask/src/requirements.rs::judge"), None);
        assert!(missing("1", "xtask/src/requirements.rs::no_such_function").is_some());
        assert!(missing("1", "xtask/src/nothing.rs").is_some());
        assert_eq!(evidence("`docs/a.md`, `cargo test`").collect::<Vec<_>>(), ["docs/a.md"]);
    }
}
