//! A folder for one test, removed at the end unless the test failed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of its own.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty folder below the system's temporary one.
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tenure-e2e-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of all files in it together.
    pub fn bytes(&self) -> u64 {
        self.listing().iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// Every file with its size and time of last change, in a fixed order.
    pub fn listing(&self) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
        let mut files = Vec::new();
        let mut folders = vec![self.path.clone()];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for path in entries.flatten().map(|entry| entry.path()) {
                // A file may vanish while we look: compaction is allowed to remove it.
                let Ok(facts) = path.metadata() else { continue };
                if facts.is_dir() {
                    folders.push(path);
                } else if let Ok(changed) = facts.modified() {
                    files.push((path, facts.len(), changed));
                }
            }
        }
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for the eye: {}", self.path.display());
        } else {
            // Left-over files in a temporary folder harm no later run.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
