//! Checks the links of all Markdown files: a relative link names a file that exists, an anchor a heading that
//! exists. Links to other sites are not checked: tests need no network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::steps::{Judged, Verdict};
use crate::workspace::{files, root, shown};

/// Judges every Markdown file of the workspace.
pub fn judge() -> Judged {
    let documents = files(&root(), "md");
    let mut wrong = Vec::new();
    let mut links = 0;
    for document in &documents {
        let text =
            std::fs::read_to_string(document).map_err(|error| format!("{}: {error}", shown(document)))?;
        for (line, target) in targets(&text) {
            links += 1;
            if let Err(why) = follow(document, &text, &target) {
                wrong.push(format!("{}:{line}: {target}: {why}", shown(document)));
            }
        }
    }
    if !wrong.is_empty() {
        return Err(format!("{} broken links\n    {}", wrong.len(), wrong.join("\n    ")));
    }
    Ok(Verdict::Passed(format!("{links} links in {} documents", documents.len())))
}

/// Whether a link leads somewhere.
fn follow(document: &Path, text: &str, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let (file, text) = if path.is_empty() {
        (document.to_path_buf(), text.to_string())
    } else {
        let file: PathBuf = document.parent().unwrap_or(Path::new("")).join(path);
        if !file.exists() {
            return Err("no such file".into());
        }
        let text =
            if anchor.is_some() { std::fs::read_to_string(&file).unwrap_or_default() } else { String::new() };
        (file, text)
    };
    match anchor {
        Some(anchor)
            if file.extension().is_some_and(|kind| kind == "md") && !anchors(&text).contains(anchor) =>
        {
            Err("no such heading".into())
        }
        _ => Ok(()),
    }
}

/// The text outside of code, line by line; code is blanked.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    text.lines()
        .map(|line| {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                return String::new();
            }
            if fenced {
                return String::new();
            }
            // Every second piece between backticks is code.
            line.split('`').step_by(2).collect::<Vec<_>>().join("`")
        })
        .collect()
}

/// Where the links of a document lead, with their lines: `[text](target)` and `[name]: target`.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in prose(text).iter().enumerate() {
        let mut rest = line.as_str();
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = rest[..end].split_whitespace().next().unwrap_or("");
            found.push((index + 1, target.trim_matches(['<', '>']).to_string()));
            rest = &rest[end..];
        }
        if let Some((name, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "))
            && !name.contains(']')
        {
            found.push((index + 1, target.split_whitespace().next().unwrap_or("").to_string()));
        }
    }
    found
}

/// The anchors that the headings of a document make, repeated ones with a number.
fn anchors(text: &str) -> std::collections::BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = std::collections::BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                _ if letter.is_alphanumeric() => Some(letter),
                _ => None,
            })
            .collect();
        let count = seen.entry(slug.clone()).or_insert(0);
        found.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_no_links() {
        let text = "[a](b.md) and `[c](d.md)`\n```\n[e](f.md)\n```\n[g]: h.md\n";
        assert_eq!(targets(text), [(1, "b.md".to_string()), (5, "h.md".to_string())]);
    }

    #[test]
    fn headings_make_anchors() {
        let found = anchors("# What it *is*\n## A `b`, c\n## A b c\n## A b c\n```\n# not this\n```\n");
        let expected = ["a-b-c", "a-b-c-1", "a-b-c-2", "what-it-is"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_link_to_nowhere_is_reported() {
        let here = root().join("README.md");
        assert!(follow(&here, "# One\n", "#one").is_ok());
        assert!(follow(&here, "# One\n", "#two").is_err());
        assert!(follow(&here, "", "no/such/file.md").is_err());
        assert!(follow(&here, "", "https://example.org/").is_ok());
    }
}
