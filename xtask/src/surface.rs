//! Snapshots of the public API of our libraries: every public item, method, field and variant, one per line,
//! in `docs/public-api/`. So a wider API is a visible line in a diff. The snapshot is read from the source
//! text, because the compiler gives its list of public items only to nightly tools.

use std::path::{Path, PathBuf};

use crate::steps::{Judged, Verdict};
use crate::workspace::{files, root, shown};

/// The crates that others link.
const CRATES: &[&str] = &["core", "wire", "client", "fence"];

/// Judges that the snapshots are what the source says.
pub fn judge() -> Judged {
    let mut wrong = Vec::new();
    let mut items = 0;
    for name in CRATES {
        let now = surface(name)?;
        items += now.lines().filter(|line| line.starts_with("  ")).count();
        let before = std::fs::read_to_string(snapshot(name)).unwrap_or_default();
        if now != before {
            wrong.push(difference(name, &before, &now));
        }
    }
    if wrong.is_empty() {
        return Ok(Verdict::Passed(format!("{items} public items as recorded")));
    }
    Err(format!("the public surface has changed; `cargo xtask fix` records it\n    {}", wrong.join("\n    ")))
}

/// Writes the snapshots.
pub fn write() -> Judged {
    for name in CRATES {
        let file = snapshot(name);
        let folder = file.parent().expect("a snapshot lies in a folder");
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", shown(folder)))?;
        std::fs::write(&file, surface(name)?).map_err(|error| format!("{}: {error}", shown(&file)))?;
    }
    Ok(Verdict::Passed(format!("{} snapshots", CRATES.len())))
}

fn snapshot(name: &str) -> PathBuf {
    root().join("docs/public-api").join(format!("{name}.txt"))
}

/// The first lines that differ, for the eye.
fn difference(name: &str, before: &str, now: &str) -> String {
    let gone = before.lines().find(|line| !now.lines().any(|other| other == *line));
    let new = now.lines().find(|line| !before.lines().any(|other| other == *line));
    let mut report = format!("{name}:");
    for (sign, line) in [("-", gone), ("+", new)] {
        if let Some(line) = line {
            report.push_str(&format!(" {sign} {}", line.trim()));
        }
    }
    report
}

/// The surface of a crate as text: a line per file that has public items, and its items below it.
fn surface(name: &str) -> Result<String, String> {
    let source = root().join("crates").join(name).join("src");
    let mut text = String::new();
    for file in files(&source, "rs") {
        let content = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", shown(&file)))?;
        let items = public_items(&content);
        if !items.is_empty() {
            let path: &Path = file.strip_prefix(&source).unwrap_or(&file);
            text.push_str(&format!("{}\n", path.display()));
            for item in items {
                text.push_str(&format!("  {item}\n"));
            }
        }
    }
    Ok(text)
}

/// The public items of one file, each on one line without its body; an enum with its variants.
fn public_items(content: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut lines = content.lines();
    while let Some(line) = lines.next() {
        // Tests stand at the foot of a file.
        if line == "#[cfg(test)]" && lines.clone().next().is_some_and(|next| next.starts_with("mod ")) {
            break;
        }
        let start = line.trim();
        if !start.starts_with("pub ") {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let mut item = start.to_string();
        let balanced = |item: &str| item.matches('(').count() == item.matches(')').count();
        let field_ends = |item: &str| indent > 0 && item.ends_with(',') && balanced(item);
        let whole = |item: &str| item.ends_with([';', '{', '}']) || field_ends(item);
        while !whole(&item) {
            let Some(next) = lines.next() else { break };
            item.push(' ');
            item.push_str(next.trim());
        }
        if start.starts_with("pub enum ") && item.ends_with('{') {
            let end = format!("{}}}", " ".repeat(indent));
            let body = lines.by_ref().take_while(|line| *line != end).map(str::trim);
            let kept: Vec<&str> =
                body.filter(|line| !line.starts_with("//") && !line.starts_with("#[")).collect();
            item = format!("{item} {} }}", kept.join(" "));
        } else {
            item = item.trim_end_matches(['{', ' ', ',']).to_string();
        }
        items.push(item);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_without_bodies_and_tests() {
        let content = "\
/// Doc.
pub struct Token(u64);
pub struct Open {
    /// Who.
    pub holder: HolderName,
    secret: u8,
}
pub enum Mode {
    /// One.
    Exclusive,
    Slots { n: u32 },
}
impl Token {
    pub fn next(self,
        by: u64) -> Token {
        let x = 1;
    }
    pub(crate) fn hidden() {}
}
#[cfg(test)]
mod tests {
    pub fn not_this() {}
}
";
        let expected = [
            "pub struct Token(u64);",
            "pub struct Open",
            "pub holder: HolderName",
            "pub enum Mode { Exclusive, Slots { n: u32 }, }",
            "pub fn next(self, by: u64) -> Token",
        ];
        assert_eq!(public_items(content), expected);
    }
}
