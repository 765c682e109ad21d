//! The suite on a folder: a value is a file in the current generation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_core::{Permit, Scope, Token};
use tenure_fence::files::Files;
use tenure_fence::{Barrier, Cursor, FenceError, FenceMark, Takeover};

use crate::cases::{self, Gate, REASON, Subject};
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

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.files.mark(scope)
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        self.files.repair(scope, to, &"operator".parse().expect("a name"), REASON)
    }

    async fn audit(&self, _scope: &Scope) -> String {
        // The case has the folder for itself.
        let mut folders = vec![self.root.clone()];
        let mut found = String::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                match path.file_name() {
                    Some(name) if name == "audit" => found += &fs::read_to_string(&path).expect("audit"),
                    _ if path.is_dir() => folders.push(path),
                    _ => {}
                }
            }
        }
        found
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

/// A front end that demands sequencers: a made-up token, however high, raises no mark.
#[cfg(feature = "sequencer")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_made_up_token_cannot_poison_a_fence_that_verifies() {
    use tenure_core::Generation;
    use tenure_fence::sequencer::{ClaimedMode, Claims, Keys, Signing};

    let folder = Folder::start("poison").await.expect("a folder");
    let scope = cases::fresh_scope("verified");
    let cluster = "cluster-1";
    let node = Signing::from_seed("node-1", &[1; 32]);
    let mut keys = Keys::new(cluster);
    keys.add(node.kid(), &node.public()).expect("a key");
    let claims = |token: u64| Claims {
        cluster: cluster.into(),
        scope: scope.clone(),
        token: cases::token(token),
        mode: ClaimedMode::Exclusive,
        generation: Generation::new(1),
    };
    // What the front end does with every request: check, install, write.
    let serve = |sequencer: &str| -> Result<(), String> {
        let writer = keys.verify_writer(sequencer, &scope).map_err(|error| error.to_string())?;
        let takeover = Takeover::verified(&writer, "front-end".parse().expect("a name"));
        folder.files.barrier(&takeover).map_err(|error| error.to_string())?;
        folder
            .files
            .publish(&writer, |previous, next| change(previous, next, "k", Some("v")))
            .map_err(|error| error.to_string())
    };
    serve(&node.sign(&claims(4))).expect("a real grant");
    let stranger = Signing::from_seed("node-1", &[2; 32]);
    serve(&stranger.sign(&claims(Token::MAX.get()))).expect_err("nobody signed that");
    let real = node.sign(&claims(4));
    let (head, tail) =
        (real.split('.').next().expect("a header"), real.rsplit('.').next().expect("a signature"));
    let made_up = stranger.sign(&claims(Token::MAX.get()));
    let payload = made_up.split('.').nth(1).expect("a payload");
    serve(&format!("{head}.{payload}.{tail}")).expect_err("a real signature under other claims");
    assert_eq!(folder.files.mark(&scope).expect("mark").map(|mark| mark.token), Some(cases::token(4)));
    serve(&node.sign(&claims(5))).expect("the next real grant gets in");
    serve(&node.sign(&claims(4))).expect_err("and the old one is stale");
}

/// Two holders have come while a writer was inside, and one has gone: the newest fence does not lead to the
/// writer, and only the whole chain tells that it was passed by.
#[tokio::test]
async fn a_writer_that_was_overtaken_twice_is_notified() {
    let Some(folder) = Folder::start("twice").await else { return };
    let (files, scope) = (&folder.files, cases::fresh_scope("twice"));
    files.barrier(&cases::takeover(&scope, 1)).expect("first barrier");
    let late = files.publish(&cases::permit(&scope, 1), |previous, next| {
        files.barrier(&cases::takeover(&scope, 2)).expect("second barrier");
        let second = cases::permit(&scope, 2);
        files
            .publish(&second, |previous, next| change(previous, next, "a", Some("second")))
            .expect("publish");
        files.barrier(&cases::takeover(&scope, 3)).expect("third barrier");
        change(previous, next, "a", Some("zombie"))
    });
    cases::assert_stale(late, 1, 3);
    assert_eq!(folder.get(&scope, "a").await.as_deref(), Some("second"));
}
