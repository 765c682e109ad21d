//! Checks the table of crates in `docs/ARCHITECTURE.md` against the manifests: every crate has a row, uses
//! only the crates that its row allows, and is used only where its row allows. Tests may use anything.

use std::collections::{BTreeMap, BTreeSet};

use crate::steps::{Judged, Verdict};
use crate::workspace::root;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";
/// What the last column says of a crate that others must not use; exceptions follow after `but`.
const UNUSED: &str = "is used by anything";

/// Judges the table.
pub fn judge() -> Judged {
    let table = rows(&read(DOCUMENT)?)?;
    let uses = manifests()?;
    let wrong = compare(&table, &uses);
    if !wrong.is_empty() {
        return Err(format!("{DOCUMENT}\n    {}", wrong.join("\n    ")));
    }
    let edges: usize = uses.values().map(BTreeSet::len).sum();
    Ok(Verdict::Passed(format!("{} crates, {edges} uses of one by another, all allowed", uses.len())))
}

/// What one row allows.
struct Row {
    /// The crates that it may use; `None` for any.
    may_use: Option<BTreeSet<String>>,
    /// The only crates that may use it, where the row names them; `None` for any.
    used_by: Option<BTreeSet<String>>,
}

/// Says what the manifests do and the table does not allow.
fn compare(table: &BTreeMap<String, Row>, uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, used) in uses {
        let Some(row) = table.get(name) else {
            wrong.push(format!("{name} has no row"));
            continue;
        };
        for other in used {
            if row.may_use.as_ref().is_some_and(|allowed| !allowed.contains(other)) {
                wrong.push(format!("{name} uses {other}, which its row does not allow"));
            }
            let users = table.get(other).and_then(|row| row.used_by.as_ref());
            if users.is_some_and(|allowed| !allowed.contains(name)) {
                wrong.push(format!("{name} uses {other}, which the row of {other} does not allow"));
            }
        }
    }
    wrong
}

/// The rows of the table with a column "may use", by the crate's short name.
fn rows(document: &str) -> Result<BTreeMap<String, Row>, String> {
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>()
    };
    let mut lines =
        document.lines().skip_while(|line| !(line.starts_with('|') && line.contains("| may use |")));
    let head = cells(lines.next().ok_or(format!("{DOCUMENT} has no table with a column \"may use\""))?);
    let column = |name: &str| {
        let found = head.iter().position(|cell| cell == name);
        found.ok_or(format!("{DOCUMENT}: the table of crates has no column {name:?}"))
    };
    let (name, may_use, never) = (column("crate")?, column("may use")?, column("so it never")?);
    let mut rows = BTreeMap::new();
    for row in lines.skip(1).take_while(|line| line.starts_with('|')).map(cells) {
        let [Some(name), Some(may_use), Some(never)] = [name, may_use, never].map(|column| row.get(column))
        else {
            return Err(format!("{DOCUMENT}: a row has too few columns: {}", row.join(" | ")));
        };
        let name = name.trim_matches('`').trim_start_matches("crates/").to_string();
        let may_use = (may_use != "anything").then(|| names(may_use));
        let used_by = never.strip_prefix(UNUSED).map(|rest| names(rest.trim().trim_start_matches("but ")));
        if rows.insert(name.clone(), Row { may_use, used_by }).is_some() {
            return Err(format!("{DOCUMENT}: {name} stands there twice"));
        }
    }
    Ok(rows)
}

/// `core, fence (what a fence is)` as names; what stands in parentheses is for people.
fn names(cell: &str) -> BTreeSet<String> {
    let mut depth = 0;
    let plain: String = cell
        .chars()
        .filter(|sign| {
            depth += i32::from(*sign == '(') - i32::from(*sign == ')');
            depth == 0 && *sign != ')'
        })
        .collect();
    let words = plain.split(',').map(|word| word.trim().trim_matches('`').to_string());
    words.filter(|word| !word.is_empty()).collect()
}

/// What every crate of the workspace uses of ours, by short names.
fn manifests() -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let folder = root().join("crates");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("crates: {error}"))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| format!("crates/{}", entry.file_name().to_string_lossy()))
        .collect();
    names.extend(["examples".into(), "xtask".into()]);
    names.sort();
    let mut uses = BTreeMap::new();
    for name in names {
        let used = used(&read(&format!("{name}/Cargo.toml"))?);
        uses.insert(name.trim_start_matches("crates/").to_string(), used);
    }
    Ok(uses)
}

/// The crates of ours that a manifest names as what its programs, not its tests, are built from.
fn used(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        let name = if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let of_tests = section.split('.').any(|part| part == "dev-dependencies");
            let (table, name) = section.rsplit_once('.').unwrap_or(("", section));
            inside = name.ends_with("dependencies") && !of_tests;
            // `[dependencies.name]`
            if table.ends_with("dependencies") && !of_tests { name } else { continue }
        } else if inside && let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            let renamed = value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
            renamed.unwrap_or(key.split('.').next().unwrap_or(key).trim())
        } else {
            continue;
        };
        found.extend(name.strip_prefix("tenure-").map(String::from));
    }
    found
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| layer | without it |
|---|---|
| lease | trouble |

| crate | what it is | may use | so it never |
|---|---|---|---|
| `crates/core` | rules | `core`, `alloc` | waits |
| `crates/client` | a library | core, fence (what one is, no adapter) | |
| `crates/sim` | tests | anything | is used by anything |
| `crates/bench` | numbers | anything | is used by anything but cli (`tenure bench`) |
| `crates/cli` | a program | client, bench | |

| `crates/other` | another table | anything | |
";

    fn wrong(uses: &[(&str, &[&str])]) -> Vec<String> {
        let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let uses = uses.iter().map(|(name, used)| (name.to_string(), set(used))).collect();
        compare(&rows(TABLE).expect("the table can be read"), &uses)
    }

    #[test]
    fn what_the_table_allows_passes() {
        let uses: &[(&str, &[&str])] = &[
            ("core", &[]),
            ("client", &["core", "fence"]),
            ("sim", &["client", "core", "fence"]),
            ("cli", &["bench", "client"]),
        ];
        assert_eq!(wrong(uses), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_dependency_is_reported() {
        assert_eq!(wrong(&[("core", &["client"])]), ["core uses client, which its row does not allow"]);
        assert_eq!(wrong(&[("client", &["cli"])]), ["client uses cli, which its row does not allow"]);
        assert_eq!(wrong(&[("sim", &["bench"])]), ["sim uses bench, which the row of bench does not allow"]);
        assert_eq!(wrong(&[("bench", &["sim"])]), ["bench uses sim, which the row of sim does not allow"]);
        assert_eq!(wrong(&[("other", &[])]), ["other has no row"]);
    }

    #[test]
    fn manifests_are_read_without_what_tests_use() {
        let manifest = "\
[package]
name = \"tenure-x\"
[dependencies]
# tenure-not = \"\"
tenure-core.workspace = true
tenure-fence = { workspace = true, features = [\"files\"] }
alias = { package = \"tenure-wire\", path = \"../wire\" }
tokio = \"1\"
[dependencies.tenure-server]
path = \"../server\"
[target.'cfg(unix)'.dependencies]
tenure-clock.workspace = true
[build-dependencies]
tenure-demo.workspace = true
[dev-dependencies]
tenure-sim.workspace = true
[dev-dependencies.tenure-bench]
path = \"../bench\"
";
        let found: Vec<String> = used(manifest).into_iter().collect();
        assert_eq!(found, ["clock", "core", "demo", "fence", "server", "wire"]);
    }
}
