//! The suite on a folder: a value is a file in the current generation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_core::{Permit, Scope, Token};
use tenure_fence::files::Files;
use tenure_fence::{Barrier, Cursor, FenceError, Mark, Takeover};

use crate::cases::{self, Gate, Subject};
use crate::support;

crate::conform!(Folder::start);

struct Folder {
    root: PathBuf,
    files: Arc<Files>,
}

impl Folder {
    async fn start(_case: &str) -> Option<Folder> {
        let root = support::folder("files");
        let files = Arc::new(Files::open(&root).expect("open"));
        Some(Folder { root, files })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The previous generation with one file changed.
fn change(previous: Option<&Path>, next: &Path, key: &str, value: Option<&str>) -> std::io::Result<()> {
    for entry in previous.into_iter().flat_map(|previous| fs::read_dir(previous).expect("a generation")) {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            fs::copy(entry.path(), next.join(entry.file_name()))?;
        }
    }
    match value {
        Some(value) => fs::write(next.join(key), value),
        None => fs::remove_file(next.join(key)),
    }
}

impl Subject for Folder {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        tokio::task::block_in_place(|| self.files.barrier(takeover))
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<Mark>, FenceError> {
        self.files.mark(scope)
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<Mark, FenceError> {
        self.files.repair(scope, to, &"operator".parse().expect("a name"), "a test's poison")
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        tokio::task::block_in_place(|| {
            self.files.publish(permit, |previous, next| change(previous, next, key, Some(value)))
        })
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        self.files.publish(permit, |previous, next| change(previous, next, key, None))
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        tokio::task::block_in_place(|| {
            self.files.publish_and_advance(permit, cursor, |previous, next| {
                change(previous, next, key, Some(value))
            })
        })
    }

    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        let mut gate = Some(gate);
        tokio::task::block_in_place(|| {
            self.files.publish(permit, |previous, next| {
                if let Some(gate) = gate.take() {
                    tokio::runtime::Handle::current().block_on(gate.pass());
                }
                change(previous, next, key, Some(value))
            })
        })
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let current = self.files.current(scope).expect("current")?;
        fs::read_to_string(current.join(key)).ok()
    }

    /// A new value over the same folder is all that a restart leaves.
    async fn restart(&mut self) -> bool {
        self.files = Arc::new(Files::open(&self.root).expect("open"));
        true
    }
}

/// Cleaning keeps what is current and never a fence's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleaning_forgets_generations_but_no_token() {
    let folder = Folder::start("clean").await.expect("a folder");
    let scope = cases::fresh_scope("clean");
    for (number, value) in [(1, "a"), (1, "b"), (2, "c"), (2, "d"), (3, "e")] {
        folder.put(&cases::permit(&scope, number), "k", value).await.expect("put");
    }
    folder.files.barrier(&cases::takeover(&scope, 4)).expect("barrier");
    folder.files.clean(&scope, 2).expect("clean");
    assert_eq!(folder.get(&scope, "k").await.as_deref(), Some("e"), "the base of the newest fence is kept");
    for number in [1, 2, 3] {
        cases::assert_stale(folder.put(&cases::permit(&scope, number), "k", "zombie").await, number, 4);
    }
    folder.put(&cases::permit(&scope, 4), "k", "f").await.expect("put");
    folder.files.clean(&scope, 1).expect("clean");
    assert_eq!(folder.get(&scope, "k").await.as_deref(), Some("f"));
}
