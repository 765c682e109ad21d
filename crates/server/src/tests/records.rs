//! The server asks the machine for views and never reads its records: what stores the state has it as a
//! `tenure_wire::Captured`, which shows nothing of what is inside.

use std::path::Path;

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder of this crate") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests/records.rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).expect("text")));
        }
    }
}

#[test]
fn the_server_reads_no_record_of_the_machine() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 30, "these are the sources");
    for (path, text) in found {
        for word in [
            "tenure_core::state",
            "core::state::",
            "Machine::capture",
            "machine.capture()",
            "machine().capture()",
        ] {
            assert!(!text.contains(word), "{path} has {word}: ask for a view (core/src/machine/view.rs)");
        }
    }
}
